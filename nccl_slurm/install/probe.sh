# What is on this host, as `install.sh --check` asks it: sh -s NONCE ROLE CONF HOOKS USER [PATTERN...] <probe.sh
#
# Runs as root: on the controller by itself, on nodes by srun or ssh. ROLE is node or controller, USER is SlurmUser, a
# PATTERN is what slurm.conf names. Each line of the answer is NONCE, node, word and values, with tabs between; a line
# without NONCE is a banner of somebody else; one without the last word "end" was cut. What may hang comes last.
# Makes and removes one folder in the spool and one file in SHARED/tmp; changes nothing else.
# shellcheck shell=sh

set +eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
nonce=$1 role=$2 conf=$3 hooks=$4 user=$5
shift 5
node=${SLURMD_NODENAME:-$(hostname)}
tab=$(printf '\t')
nobody=65534

# A value may hold anything: names in a folder, a line of capture.conf.
say() {
    line=$nonce$tab$node
    for value; do
        case $value in
            *[[:cntrl:]]*) value=$(printf '%s' "$value" | tr '[:cntrl:]' '?') ;;
        esac
        line=$line$tab$value
    done
    printf '%s\n' "$line"
}

# as UID COMMAND...: without root's rights.
as() {
    uid=$1
    shift
    setpriv --reuid="$uid" --regid="$(id -g "$uid" 2>/dev/null || echo "$uid")" --clear-groups -- "$@" 2>/dev/null
}

answer() {
    if "$@" >/dev/null 2>&1; then echo yes; else echo no; fi
}

# The first of a path and the folders above it that somebody besides root can change.
open_to_others() {
    at=$(readlink -f "$1")
    shift $#
    while [ -n "$at" ]; do
        set -- "$@" "$at"
        at=${at%/*}
    done
    find "$@" / -maxdepth 0 \( ! -uid 0 -o ! -perm -1000 \( -perm /002 -o -perm /020 ! -gid 0 \) \) 2>/dev/null | head -n 1
}

kind_of() {
    if [ -f "$1" ]; then echo file; elif [ -d "$1" ]; then echo folder; elif [ -e "$1" ]; then echo other; else echo dangling; fi
}

filesystem_of() {
    findmnt -n -o FSTYPE --target "$1" 2>/dev/null | tail -n 1
}

# Slurm starts a script by the name that it was configured with: one that looks for its neighbours there notices a link.
looks_at_own_path() {
    # shellcheck disable=SC2016
    grep -Iq -e '\$0' -e '\${0' -e BASH_SOURCE -e __file__ "$1"
}

# Slurm takes a pattern as glob(3) does: no braces, no hidden files.
describe() {
    [ -n "$1" ] || return 0
    IFS=
    for path in $1; do
        [ -e "$path" ] || [ -h "$path" ] || continue
        real=$(readlink -f "$path")
        kind=$(kind_of "$path")
        sum=
        [ "$kind" != file ] || sum=$(sha256sum <"$path")
        open=$(open_to_others "$path")
        [ -n "$open" ] || [ "${path%/*}" = "${real%/*}" ] || open=$(open_to_others "${path%/*}")
        say file "$1" "$path" "$real" "$kind" "$(answer test -x "$path")" "${sum%% *}" "$(filesystem_of "$path")" \
            "$open" "$(answer test "$kind" = file -a -n "$(looks_at_own_path "$path" && echo yes)")"
    done
    unset IFS
}

# As an ordinary user: task_prolog reads it as one, and root must not run a file that turns out to be a user's.
# shellcheck disable=SC2016
configured() {
    as $nobody env -i SLURMD_NODENAME="$node" PATH="$PATH" timeout 10 sh -c '
        . "$1" >/dev/null
        for key in $(set | sed -n "s/^\(NCCL_SLURM_[A-Z0-9_]*\)=.*/\1/p"); do
            eval "value=\$$key"
            printf "%s=%s\n" "$key" "$(printf %s "$value" | tr "[:cntrl:]" "?")"
        done' sh "$conf" </dev/null
}

read_conf() {
    spool=/var/spool/nccl-slurm prefix=/opt/nccl-slurm python=/usr/bin/python3 events=/var/spool/nccl-slurm/events
    shared='' ship=0 patterns='' site_task='' site_controller=''
    while IFS='=' read -r key value; do
        [ -z "$key" ] || say conf "$key" "$value"
        [ -n "$value" ] || continue
        case $key in
            NCCL_SLURM_SPOOL) spool=$value ;;
            NCCL_SLURM_PREFIX) prefix=$value ;;
            NCCL_SLURM_PYTHON) python=$value ;;
            NCCL_SLURM_EVENTS) events=$value ;;
            NCCL_SLURM_PATTERNS) patterns=$value ;;
            NCCL_SLURM_SHARED) shared=$value ;;
            NCCL_SLURM_SHIP_UID) ship=$value ;;
            NCCL_SLURM_SITE_TASK_PROLOG) site_task=$value ;;
            NCCL_SLURM_SITE_EPILOG_SLURMCTLD) site_controller=$value ;;
        esac
    done <<END
$(configured)
END
}

say_tools() {
    for tool in setsid setpriv timeout readlink stat sha256sum find findmnt; do
        command -v $tool >/dev/null 2>&1 || say absent $tool
    done
}

# Without a job's variables a hook has nothing to do. One that would start the site's own script first is left alone.
say_starts() {
    say starts_prolog "$(answer env -i "$hooks/prolog.d/50-nccl-slurm")"
    say starts_epilog "$(answer env -i "$hooks/epilog.d/50-nccl-slurm")"
    [ -n "$site_task" ] || say starts_task_prolog "$(answer as $nobody env -i "$hooks/task_prolog")"
}

say_node() {
    say_starts
    say task_prolog "$(answer as $nobody test -r "$hooks/task_prolog" -a -x "$hooks/task_prolog")"
    say systemd "$(answer test -d /run/systemd/system -a -n "$(command -v systemd-run)")"
    mkdir "$spool/.check.$nonce" 2>/dev/null && rmdir "$spool/.check.$nonce"
    say spool "$(answer test $? = 0)" "$spool" "$(filesystem_of "$spool")"
}

say_controller() {
    uid=$(id -u "$user" 2>/dev/null || echo $nobody)
    say epilog_slurmctld "$(answer as "$uid" test -r "$hooks/epilog_slurmctld" -a -x "$hooks/epilog_slurmctld")" "$user"
    [ -n "$site_controller" ] || say starts_epilog_slurmctld "$(answer as "$uid" env -i "$hooks/epilog_slurmctld")"
    say events "$(answer as "$uid" test -d "$events" -a -w "$events")" "$events" "$user"
    [ -z "$site_controller" ] || say site_epilog_slurmctld "$(answer as "$uid" test -x "$site_controller")" "$user"
}

say_code() {
    describe "$python"
    describe "$prefix/nccl_slurm/capture/main.py"
    describe "$patterns"
    # shellcheck disable=SC2016
    version=$(timeout -k 1 20 "$python" -I -S -B -c '
import sys
sys.path.insert(0, sys.argv[1])
import nccl_slurm.capture.main
print(".".join(map(str, sys.version_info[:2])))' "$prefix" </dev/null 2>&1 | tail -n 1)
    say python "$python" "$prefix" "$version"
}

# shellcheck disable=SC2016
say_shared() {
    [ -n "$shared" ] || return 0
    say owners "$(stat -L -c '%u %a' "$shared/tmp" "$shared/new" | tr '\n' ' ')"
    say shared "$(answer as "$ship" sh -c '[ -w "$2" ] && : >"$1" && rm "$1"' sh "$shared/tmp/.check.$nonce.$node" \
        "$shared/new")" "$shared" "$ship"
}

main() {
    say begin "$role"
    say_tools
    say syntax "$(answer as $nobody sh -n "$conf")"
    read_conf
    describe "$conf"
    for pattern; do
        describe "$pattern"
    done
    [ "$role" = controller ] || describe "$site_task"
    [ "$role" != controller ] || describe "$site_controller"
    "say_$role"
    say_code
    say_shared
    say end
}

main "$@" </dev/null 2>/dev/null
