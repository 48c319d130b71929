#!/usr/bin/env bash
# Installs nccl-slurm on the hosts of a cluster (nccl_slurm/install does that), or sets it up for development, shows it
# at work, or tests it, from a checkout on a bare Debian, Ubuntu or RHEL-like system. Non-interactive; a second run
# skips what is there already.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")"
readonly VENV=.venv
readonly STAMP=$VENV/.nccl-slurm-stamp
readonly TORCH=torch==2.13.0
readonly TORCH_SKIPPED=$VENV/.nccl-slurm-torch-skipped
readonly NODE_CODE=(nccl_slurm/capture nccl_slurm/parse nccl_slurm/install nccl_slurm/model.py nccl_slurm/errors.py nccl_slurm/clock.py nccl_slurm/doctor/gather.py nccl_slurm/doctor/sources.py)
# What tests/cluster/harness.py starts.
readonly PROGRAMS=(munged mariadbd mariadb-install-db mariadb-admin slurmdbd slurmctld slurmd srun)
# Tested beside the machine's own release, by the tests that follow a job from its start to its comment.
readonly OTHER_RELEASES=(24.11 26.05)

export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
left_out=()
apt_lists=old

usage() {
    cat <<'END'
usage: ./install.sh --dev
       ./install.sh --demo [--keep] [--with-torch]
       ./install.sh --test [--quick] [--with-torch]
       ./install.sh --node | --controller | --uninstall | --check [OPTION...]

  --dev          .venv/ in this checkout with the package (editable) and the test tools; no Slurm
  --demo         install Slurm's packages, start a private four-node Slurm with nccl-slurm on it, let a real job
                 hang, print its comment and report, take all down (root)
    --keep         leave it running, and say how to look around and how to stop it
  --test         install all that the tests need and run the linters and all tests, those that follow a job on Slurm
                 24.11 and 26.05 too (root)
    --quick        without torch, and on one Slurm alone what follows a job from its start to its comment; without
                   root no Slurm at all
  --with-torch   install torch even where only a CUDA build of several GB is on offer
  --node         on a cluster: this compute node; --controller: this controller; --uninstall: take it away;
  --controller   --check: prove it on all nodes and print the lines for slurm.conf. Each of them with --help lists its
  --uninstall    options; --dry-run prints what it would touch
  --check
  --help         this text

Exit status: 0 done, 1 failed, 2 usage.
END
}

say() { printf 'install.sh: %s\n' "$*"; }

die() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

leave_out() {
    left_out+=("$*")
    say "left out: $*"
}

# Runs a command; shows the end of its output only where it fails.
quietly() {
    local log status=0
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || status=$?
    [ $status = 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}

# shown FILE COMMAND...: runs a command and keeps a copy of what it prints.
shown() {
    local file=$1
    shift
    "$@" 2>&1 | tee "$file"
}

have() { command -v "$1" >/dev/null 2>&1; }

# --- system packages --------------------------------------------------------------------------------------------

# Packages must not start services here: the tests start their own daemons, the machine's stay as they are. Debian's
# way to say so is policy-rc.d with status 101 (invoke-rc.d(8)).
apt_install() {
    local policy=/usr/sbin/policy-rc.d made=no status=0
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 0755 $policy
        made=yes
    fi
    export DEBIAN_FRONTEND=noninteractive
    if [ $apt_lists = old ]; then
        quietly apt-get update -q || say "apt-get update failed; trying the lists at hand"
        apt_lists=new
    fi
    quietly apt-get install -q -y --no-install-recommends "$@" || status=$?
    [ $made = no ] || rm -f $policy
    return $status
}

# Slurm for RHEL and its kin is in EPEL, and some of what that needs in CRB (PowerTools, before 9).
dnf_install() {
    dnf -q -y install "$@" </dev/null >/dev/null 2>&1 && return 0
    dnf -q -y install epel-release </dev/null >/dev/null 2>&1 || true
    dnf -q config-manager --set-enabled crb </dev/null >/dev/null 2>&1 || true
    quietly dnf -q -y install "$@"
}

# system_install APT-PACKAGES -- DNF-PACKAGES
system_install() {
    local apt=()
    while [ "$1" != -- ]; do
        apt+=("$1")
        shift
    done
    shift
    [ "$(id -u)" = 0 ] || { say "not root: can't install ${apt[*]:-$*}" && return 1; }
    if have apt-get; then
        say "installing ${apt[*]}"
        apt_install "${apt[@]}"
    elif have dnf; then
        say "installing $*"
        dnf_install "$@"
    else
        say "neither apt-get nor dnf is here; install by hand what is named ${apt[*]} on Debian"
        return 1
    fi
}

missing_programs() {
    local name
    for name in "${PROGRAMS[@]}"; do
        have "$name" || printf '%s ' "$name"
    done
}

install_slurm() {
    [ -z "$(missing_programs)" ] && return 0
    system_install slurmctld slurmd slurmdbd slurm-client munge mariadb-server -- \
        slurm slurm-slurmctld slurm-slurmd slurm-slurmdbd munge mariadb-server || true
    local missing
    missing=$(missing_programs)
    [ -z "$missing" ] && return 0
    say "not to be had here: $missing"
    return 1
}

# For the SPANK plugin's tests.
install_headers() {
    [ -e /usr/include/slurm/spank.h ] && have make && have cc && return 0
    system_install libslurm-dev make gcc libc6-dev -- slurm-devel make gcc || true
    [ -e /usr/include/slurm/spank.h ] && have make && have cc
}

# For the tests of ranks in containers.
install_containers() {
    have bwrap || system_install bubblewrap -- bubblewrap || true
    have bwrap
}

# For the tests of records by SSH, which start an sshd of their own.
install_sshd() {
    have sshd && have ssh-keygen && return 0
    system_install openssh-server openssh-client -- openssh-server openssh || true
    have sshd && have ssh-keygen
}

install_shellcheck() {
    have shellcheck || system_install shellcheck -- ShellCheck || leave_out "shellcheck of the shell scripts: not to be had"
}

# --- Python -----------------------------------------------------------------------------------------------------

# Able to make environments, and new enough for the controller's side.
python_fits() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

# The system's own first: jobs run as ordinary users, who often can't reach a Python below somebody's home.
find_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.{14,13,12,11,10} python3 python3.{14,13,12,11,10}; do
        if have "$candidate" && python_fits "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

ensure_python() {
    find_python >/dev/null && return 0
    system_install python3 python3-venv -- python3.12 || system_install python3 python3-venv -- python3.11 || true
    find_python >/dev/null || die "no Python 3.10 or newer with venv and ensurepip; install one (Debian: python3-venv)"
}

fingerprint() {
    { cat pyproject.toml && "$VENV/bin/python" -VV && pwd; } | sha256sum
}

# What is installed is compiled on all cores: pip takes one, and half a minute for torch. Some packages have a file that
# does not compile, which pip passes over too.
pip_install() {
    quietly "$VENV/bin/pip" install -q --no-compile "$@" || return 1
    "$VENV/bin/python" -m compileall -q -j 0 "$VENV"/lib/python3*/site-packages >/dev/null 2>&1 || true
}

ensure_venv() {
    if ! "$VENV/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
        ensure_python
        say "making $VENV with $(find_python)"
        "$(find_python)" -m venv --clear "$VENV"
    fi
    if [ "$(cat "$STAMP" 2>/dev/null)" != "$(fingerprint)" ]; then
        say "installing the package and its tools into $VENV"
        pip_install -e '.[dev,mariadb]' || die "pip failed (see above)"
        fingerprint >"$STAMP"
    fi
}

torch_version() {
    "$VENV/bin/python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null
}

# True where the installer would bring a CUDA build: then it wants packages of the nvidia- family. Without an answer
# in two minutes (an index that hands out no metadata makes pip fetch the whole wheel) it counts as one.
torch_is_cuda() {
    local report
    report=$(mktemp)
    if ! timeout 120 "$VENV/bin/pip" install -q --dry-run --report "$report" "$TORCH" >/dev/null 2>&1; then
        rm -f "$report"
        return 0
    fi
    "$VENV/bin/python" - "$report" <<'END' && rm -f "$report"
import json, sys
names = [item["metadata"]["name"].lower() for item in json.load(open(sys.argv[1]))["install"]]
sys.exit(not any(name.startswith("nvidia") for name in names))
END
}

# offer_torch WITH: yes takes what is on offer, no takes a CPU build only.
offer_torch() {
    [ -n "$(torch_version)" ] && return 0
    if [ "$1" = no ]; then
        if [ "$(cat "$TORCH_SKIPPED" 2>/dev/null)" = "$TORCH" ] || torch_is_cuda; then
            echo "$TORCH" >"$TORCH_SKIPPED"
            leave_out "tests with torch: only a CUDA build of several GB, or none, is on offer; --with-torch takes it"
            return 0
        fi
    fi
    say "installing $TORCH; this takes minutes"
    pip_install "$TORCH" || die "pip could not install $TORCH; run without --with-torch, or see above"
    rm -f "$TORCH_SKIPPED"
}

# --- on a cluster -----------------------------------------------------------------------------------------------

# Of any Python that runs the installer; which one nodes and daemon get is a matter of its own.
find_installer_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.{14,13,12,11,10,9,8} /usr/libexec/platform-python python3; do
        if have "$candidate" && "$candidate" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

usage_on_cluster() {
    local python
    python=$(find_installer_python) || return 0
    echo
    "$python" -I -S -B nccl_slurm/install/main.py --help
    echo
    "$python" -I -S -B nccl_slurm/install/main.py --check --help
}

on_cluster() {
    local python
    python=$(find_installer_python) || die "no Python 3.8 or newer here; install one (RHEL 8: dnf install python3.11)"
    exec "$python" -I -S -B nccl_slurm/install/main.py "$@"
}

# --- what the options do ----------------------------------------------------------------------------------------

dev() {
    ensure_venv
    say "ready: $VENV/bin/nccl-slurm --help; ./install.sh --test runs the tests"
}

need_root() {
    [ "$(id -u)" = 0 ] || die "$1 needs root: it starts Slurm's daemons and runs jobs as ordinary users"
}

demo() {
    need_root --demo
    ensure_venv
    install_slurm || die "the demo needs Slurm's daemons and MariaDB; install them and run it again"
    [ "$with_torch" = no ] || offer_torch yes
    local options=()
    [ "$keep" = no ] || options+=(--keep)
    [ "$with_torch" = no ] || options+=(--with-torch)
    "$VENV/bin/python" -m tests.cluster.demo ${options[@]+"${options[@]}"}
}

shell_scripts() {
    find . -path "./$VENV" -prune -o -path ./.git -prune -o -type f -print | sort | while read -r path; do
        case $path in
            *.sh) echo "$path" ;;
            *) head -c 40 "$path" | tr -d '\0' | head -n 1 | grep -qE '^#!.*(/|env )(sh|bash|dash)( |$)' && echo "$path" ;;
        esac || true
    done
}

# check NAME COMMAND...: runs on after a failure, so that one run shows all.
check() {
    local name=$1
    shift
    if "$@"; then
        say "$name: ok"
    else
        failed+=("$name")
        say "$name: FAILED"
    fi
}

lint() {
    check "ruff check" "$VENV/bin/ruff" check -q .
    check "ruff format" "$VENV/bin/ruff" format -q --check .
    check "mypy" "$VENV/bin/mypy" --no-error-summary
    if have shellcheck; then
        local scripts
        mapfile -t scripts < <(shell_scripts)
        check "shellcheck (${#scripts[@]} files)" shellcheck "${scripts[@]}"
    fi
    check "vermin (node code runs on Python 3.8)" "$VENV/bin/vermin" -q -t=3.8- --no-tips --violations "${NODE_CODE[@]}"
}

# Node code claims Python 3.8: its tests use this interpreter.
find_node_python() {
    local candidate
    for candidate in "$(command -v python3.8 || true)" "$HOME"/.pyenv/versions/3.8*/bin/python3.8; do
        if [ -x "$candidate" ] && "$candidate" -c '' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

# summarize RESULTS OUTPUT: prints which files of tests took longest, and how many tests were left out, by reason. Those
# that -m leaves out are in pytest's own last line alone.
summarize() {
    "$VENV/bin/python" - "$@" <<'END'
import collections, re, sys
import xml.etree.ElementTree as tree

results = tree.parse(sys.argv[1])
skipped = results.iter("skipped")
took = collections.Counter()
for case in results.iter("testcase"):
    took[case.get("classname", "")] += float(case.get("time", 0))
print("install.sh: longest:", ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.most_common(12)))
reasons = collections.Counter(one.get("message", "") for one in skipped)
with open(sys.argv[2], errors="replace") as output:
    for count in re.findall(r"(\d+) deselected", output.read()):
        reasons["not asked for (-m)"] += int(count)
print(f"install.sh: {sum(reasons.values())} tests left out")
for reason, count in reasons.most_common():
    print(f"install.sh:   {count}: {reason}")
END
}

# tests_pass RESULTS OUTPUT MARKS PATH...: tests on a real Slurm mostly wait, so there are three processes with a cluster
# each, a file of tests in one of them, those first (tests/conftest.py). On a busy machine they can be late for one test
# of thousands. Where up to five failed, their files run once more, alone, and both outcomes are told; a fault fails again.
tests_pass() {
    local results=$1 output=$2 marks=$3 failed again
    shift 3
    shown "$output" "$VENV/bin/python" -m pytest -q --junitxml="$results" -n 3 --dist loadfile --no-loadscope-reorder \
        -m "$marks" "$@" && return 0
    failed=$(grep -cE '^(FAILED|ERROR) ' "$output") || return 1
    [ "$failed" -le 5 ] || return 1
    mapfile -t again < <(grep -E '^(FAILED|ERROR) ' "$output" | cut -d ' ' -f 2 | cut -d : -f 1 | sort -u)
    say "$failed failed: ${again[*]} once more, alone"
    "$VENV/bin/python" -m pytest -q -m "$marks" "${again[@]}" || return 1
    grep -E '^(FAILED|ERROR) ' "$output" | cut -d ' ' -f 1-2 | while read -r line; do
        say "failed beside others, passed alone: ${line#* }"
    done
}

run_tests() {
    local results output marks=''
    results=$(mktemp)
    output=$(mktemp)
    [ "$quick" = no ] || marks="(end_to_end or not cluster) and not torch"
    if NCCL_SLURM_NODE_PYTHON=$(find_node_python); then
        export NCCL_SLURM_NODE_PYTHON
    else
        unset NCCL_SLURM_NODE_PYTHON
        leave_out "node code on Python 3.8: no python3.8 in PATH or ~/.pyenv (vermin has read it)"
    fi
    check "pytest" tests_pass "$results" "$output" "$marks"
    summarize "$results" "$output" || say "pytest wrote no results"
    rm -f "$results" "$output"
}

# on_releases RELEASE...: all that is marked end_to_end, but for jobs with torch: the environment's Python is not there.
on_releases() {
    local results output releases
    results=$(mktemp)
    output=$(mktemp)
    releases=$(IFS=,; echo "$*")
    leave_out "jobs with torch on Slurm $releases"
    export NCCL_SLURM_TEST_RELEASES=$releases
    check "pytest on Slurm $releases" tests_pass "$results" "$output" "end_to_end and not torch" \
        tests/cluster tests/scheduler/test_real.py
    unset NCCL_SLURM_TEST_RELEASES
    summarize "$results" "$output" || say "pytest wrote no results"
    rm -f "$results" "$output"
}

# Each is made by debootstrap from the machine's own Debian mirror where it is absent, once, in about 2 minutes. A machine
# that has no such mirror, or can't reach it, runs on without.
test_other_releases() {
    local release made=()
    have debootstrap || { have apt-get && system_install debootstrap --; } || true
    for release in "${OTHER_RELEASES[@]}"; do
        if slurmctld -V 2>/dev/null | grep -qF " $release"; then
            continue # the machine's own
        elif quietly timeout 1200 "$VENV/bin/python" -m tests.cluster.releases "$release"; then
            made+=("$release")
        else
            leave_out "tests on Slurm $release: it can't be made here (see above)"
        fi
    done
    [ ${#made[@]} = 0 ] || on_releases "${made[@]}"
}

test_all() {
    local began=$SECONDS failed=() line
    ensure_venv
    install_shellcheck
    if [ "$quick" = yes ]; then
        leave_out "tests with torch, and most with Slurm: --quick"
    else
        need_root --test
    fi
    if [ "$(id -u)" = 0 ]; then
        install_slurm || leave_out "tests on a real Slurm: its daemons or MariaDB can't be had here"
        install_sshd || leave_out "tests of records by SSH: sshd can't be had here"
        install_headers || leave_out "tests of the SPANK plugin: Slurm's headers or a C compiler can't be had here"
        install_containers || leave_out "tests of ranks in containers: bubblewrap can't be had here"
    fi
    [ "$quick" = yes ] || offer_torch "$with_torch"
    lint
    run_tests
    [ "$quick" = yes ] || test_other_releases
    for line in ${left_out[@]+"${left_out[@]}"}; do
        say "left out: $line"
    done
    say "$((SECONDS - began)) s"
    [ ${#failed[@]} = 0 ] || die "failed: ${failed[*]}"
    say "all passed"
}

main() {
    mode='' keep=no quick=no with_torch=no
    local option
    for option in "$@"; do
        case $option in --node | --controller | --uninstall | --check) on_cluster "$@" ;; esac
    done
    for option in "$@"; do
        case $option in
            --dev | --demo | --test)
                [ -z "$mode" ] || { usage >&2 && exit 2; }
                mode=${option#--}
                ;;
            --keep) keep=yes ;;
            --quick) quick=yes ;;
            --with-torch) with_torch=yes ;;
            -h | --help) usage && usage_on_cluster && exit 0 ;;
            *) echo "install.sh: $option: no such option" >&2 && usage >&2 && exit 2 ;;
        esac
    done
    case $mode.$keep.$quick.$with_torch in
        dev.no.no.no) dev ;;
        demo.*.no.*) demo ;;
        test.no.no.* | test.no.yes.no) test_all ;;
        *) usage >&2 && exit 2 ;;
    esac
}

main "$@"
