#!/bin/bash
# nccl-slurm on SageMaker HyperPod with Slurm: to be called from the cluster's lifecycle script, on every instance, after
# Slurm was started. A replaced instance runs its lifecycle script anew, and so gets its hooks again.
#
#   bash ./nccl-slurm.sh || true
#
# Always ends with status 0: an instance whose lifecycle script fails does not come up. What it did is printed and goes to
# syslog. slurm.conf is neither read nor written, so configless nodes need nothing else. docs/install.md tells what to put
# where; everything that follows can be set in the environment.
: "${NCCL_SLURM_SOURCE:=/fsx/nccl-slurm/source}" # checkout or unpacked release; one beside this script is taken first
: "${NCCL_SLURM_SHARED:=/fsx/nccl-slurm/shared}" # where nodes hand records over
: "${NCCL_SLURM_HOOKS:=/opt/nccl-slurm/slurm}"   # on the instance's own disk, whatever happens to /fsx
: "${NCCL_SLURM_WHEELS:=}"                       # folder of wheels, for a controller without a package index
: "${NCCL_SLURM_WAIT_S:=300}"                    # how long to wait for the file system of the two above
: "${NCCL_SLURM_ROOT:=}"                         # for tests and images: stands before all paths of the instance

set +eu
trap 'exit 0' EXIT HUP INT QUIT TERM
here=$(cd "$(dirname "$0")" && pwd)

say() {
    printf 'nccl-slurm: %s\n' "$*"
    logger -t nccl-slurm -- "$*" 2>/dev/null
}

# Prints "controller first", "controller", "login" or "compute", by this instance's address in the two files that HyperPod
# writes. Fails where they don't tell.
role() {
    # shellcheck disable=SC2046 # one word an address
    python3 -I - "$NCCL_SLURM_ROOT/opt/ml/config" $(hostname -I) 2>/dev/null <<'END_OF_PYTHON'
import json, sys

folder, addresses = sys.argv[1], set(sys.argv[2:])
with open(folder + "/provisioning_parameters.json") as file:
    parameters = json.load(file)
with open(folder + "/resource_config.json") as file:
    groups = json.load(file)["InstanceGroups"]
mine = [(group["Name"], one["InstanceName"]) for group in groups for one in group["Instances"]
        if one["CustomerIpAddress"] in addresses]
group, instance = mine[0]
if group == parameters.get("controller_group"):
    print("controller first" if instance.rpartition("-")[2] == "1" else "controller")
else:
    print("login" if group == parameters.get("login_group") else "compute")
END_OF_PYTHON
}

# wait_for COMMAND...: until it succeeds, or NCCL_SLURM_WAIT_S have passed.
wait_for() {
    local end=$((SECONDS + NCCL_SLURM_WAIT_S))
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 2
    done
}

# Another file system than the instance's own disk. A folder made before the mount would be hidden by it.
# shellcheck disable=SC2317 # called by wait_for
is_mounted() {
    local above=$1
    [ -z "$NCCL_SLURM_ROOT" ] || return 0
    until timeout 10 test -e "$above"; do above=$(dirname "$above"); done
    [ "$(timeout 10 stat -c %d "$above")" != "$(stat -c %d /)" ]
}

# Root runs what is there, so nobody else may change it, now or until it has run: nothing in it, no folder above it. A
# sticky folder above (/tmp) lets others make names, and not take ours. Root's group is root: archives that git makes
# are unpacked group-writable. The Python environment and .git of a checkout play no part. Prints what is not root's
# alone, or that it can't be told.
open_to_others() {
    local above=() at=$1 open=(! -uid 0 -o -perm /002 -o -perm /020 ! -gid 0)
    while [ "$at" != / ]; do
        at=$(dirname "$at")
        above+=("$at")
    done
    {
        timeout 10 find "${above[@]}" -maxdepth 0 \( ! -uid 0 -o ! -perm -1000 \( "${open[@]}" \) \) -print -quit &&
            timeout 120 find "$1" \( -path "$1/.git" -o -path "$1/.venv" \) -prune \
                -o \( -type l -o "${open[@]}" \) -print -quit
    } 2>/dev/null || echo "$1, which can't be read whole,"
}

# Sets $source to what $1 stands for, without links: whoever could change one of them could swap it after this.
has_code() {
    source=$(timeout 10 readlink -e "$1") && timeout 10 test -e "$source/nccl_slurm/install/main.py" || return 1
    refused=$(open_to_others "$source" | head -n 1)
    [ -n "$refused" ] || return 0
    [ "$refused" = "$told" ] || say "$refused is not root's alone: $1 is not used"
    told=$refused
    return 1
}

# Without code and configuration the hooks end at once, with status 0; without the hooks Slurm drains the node. So where
# the code has to be waited for they come first, from a copy of slurm/ beside this script.
put_hooks() {
    local name target
    [ -d "$here/slurm" ] || return 0
    for name in nccl-slurm-node prolog.d/50-nccl-slurm epilog.d/50-nccl-slurm task_prolog epilog_slurmctld; do
        target=$NCCL_SLURM_ROOT$NCCL_SLURM_HOOKS/$name
        [ ! -e "$target" ] || continue
        mkdir -p "$(dirname "$target")" && cp "$here/slurm/$name" "$(dirname "$target")/.new" &&
            chmod 0755 "$(dirname "$target")/.new" && mv -f "$(dirname "$target")/.new" "$target"
    done
    say "hooks are in $NCCL_SLURM_HOOKS"
}

# Sets $source to a folder with the code.
find_source() {
    local place told=''
    for place in "$here/nccl-slurm" "$here/../.." "$NCCL_SLURM_SOURCE"; do
        has_code "$place" && return 0
    done
    put_hooks
    say "waiting for $NCCL_SLURM_SOURCE"
    wait_for has_code "$NCCL_SLURM_SOURCE"
}

install() {
    local options=(--hooks "$NCCL_SLURM_HOOKS" --shared "$NCCL_SLURM_SHARED")
    [ -z "$NCCL_SLURM_ROOT" ] || options+=(--root "$NCCL_SLURM_ROOT")
    timeout 1500 bash "$source/install.sh" "$@" "${options[@]}" </dev/null
}

on_controller() {
    local options=(--controller --slurm-user slurm)
    if ! wait_for is_mounted "$NCCL_SLURM_SHARED"; then
        say "$NCCL_SLURM_SHARED is not mounted; run this again when it is"
        return 1
    fi
    [ -z "$NCCL_SLURM_WHEELS" ] || options+=(--wheels "$NCCL_SLURM_WHEELS")
    [ "$1" = first ] || options+=(--no-start) # one daemon a cluster
    install "${options[@]}"
}

main() {
    local kind
    kind=$(role) || say "$NCCL_SLURM_ROOT/opt/ml/config does not tell the role of this instance; hooks do no harm, so: compute"
    [ "$kind" != login ] || { say "login node: no hooks here" && return 0; }
    find_source || { say "no code in $NCCL_SLURM_SOURCE after $NCCL_SLURM_WAIT_S s; run this again later" && return 1; }
    case $kind in
        controller*) on_controller "${kind#controller }" ;;
        *) install --node ;;
    esac
}

if main; then say "done"; else say "not done, see above; the instance comes up all the same"; fi
exit 0
