#!/bin/sh
# Install what is missing for `make demo`, `make deb`, `make unit` or `make test`: Debian packages, virtual environment.
# Usage: scripts/bootstrap.sh demo|package|unit|test
set -eu

purpose=${1:-demo}
root=$(cd "$(dirname "$0")/.." && pwd)

demo_packages="munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm-dev gcc libc6-dev make python3 python3-venv iproute2 procps util-linux"
test_packages="$demo_packages slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client postgresql shellcheck slurmrestd slurm-wlm-jwt-plugin lua5.1 lua-socket systemd groff-base"

unit_packages="gcc libc6-dev make python3 python3-venv"
package_packages="$unit_packages libslurm-dev"
environment="test"
case $purpose in
demo) packages=$demo_packages extras="" environment=demo ;;
package) packages=$package_packages extras="[package]" environment=package ;;
unit) packages=$unit_packages extras="[dev]" ;;
test) packages=$test_packages extras="[dev]" ;;
*)
    echo "usage: scripts/bootstrap.sh demo|package|unit|test" >&2
    exit 2
    ;;
esac

say() { echo "bootstrap: $*" >&2; }

system=unknown
if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    system=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
fi
# Debian's testing has no VERSION_ID.
is_known() {
    case $system in
    "debian " | "debian 1"[2-9] | "debian "[2-9][0-9]) return 0 ;;
    esac
    return 1
}

if ! is_known && [ "${SLURM_ENERGY_SKIP_PACKAGES:-}" != 1 ]; then
    say "this is $system; packages are installed by this script on Debian from 12 on only."
    say "Needed, by their Debian names: $packages"
    say "Install their like, then run again with SLURM_ENERGY_SKIP_PACKAGES=1."
    exit 1
fi

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

missing_packages() {
    for package in $packages; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || printf '%s ' "$package"
    done
}

# Slurm, munge and the databases run only inside the laboratory: their own services stay off.
install_packages() {
    policy=/usr/sbin/policy-rc.d
    mark='# made by slurm-energy bootstrap while it installs'
    made_policy=
    # One with the mark was left by a run that was killed.
    if [ ! -e "$policy" ] || grep -qxF "$mark" "$policy"; then
        printf '#!/bin/sh\n%s\nexit 101\n' "$mark" | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        made_policy=1
        trap 'as_root rm -f "$policy"' EXIT INT TERM
    fi
    as_root apt-get update -q
    case " $* " in
    *" postgresql "*)
        # A server without a cluster of its own: the tests make theirs and remove it.
        if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends postgresql-common
            as_root sed -i 's/^#\{0,1\} *create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        fi
        ;;
    esac
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
    if [ -n "$made_policy" ]; then
        as_root rm -f "$policy"
        trap - EXIT INT TERM
    fi
}

if [ "${SLURM_ENERGY_SKIP_PACKAGES:-}" != 1 ]; then
    missing=$(missing_packages)
    if [ -n "$missing" ]; then
        if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
            say "root is needed to install Debian packages: run as root, or install sudo."
            say "Missing: $missing"
            exit 1
        fi
        say "installing Debian packages: $missing"
        # shellcheck disable=SC2086  # a list of words
        install_packages $missing
    fi
fi

# The system's own interpreter: users of the laboratory cannot enter a home folder's.
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
    say "$python is missing or older than Python 3.11: set PYTHON to a newer one"
    exit 1
}
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | sha256sum | cut -c1-16)
stamp="$root/.venv/.stamp-$environment-$wanted"
# The environment of the tests has what the packages need.
[ "$environment" != package ] || [ ! -e "$root/.venv/.stamp-test-$wanted" ] || stamp="$root/.venv/.stamp-test-$wanted"
if [ ! -e "$stamp" ]; then
    say "installing the virtual environment in $root/.venv (first time: a few minutes)"
    # pip comes last: without it an earlier try was cut short.
    [ -x "$root/.venv/bin/pip" ] || "$python" -m venv "$root/.venv"
    # The build with CUDA that pip takes by itself is several gigabytes.
    if [ -z "${PIP_EXTRA_INDEX_URL:-}${PIP_INDEX_URL:-}" ] && ! "$root/.venv/bin/pip" config list | grep -q index-url; then
        export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
    fi
    if [ "$environment" = test ] && [ -n "$extras" ] && "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --dry-run \
        --report - -c "$root/constraints.txt" torch 2>/dev/null | grep -q '"name": *"nvidia-'; then
        say "torch from the index that pip is set to is the build with CUDA: about 5 GB, of which nothing is needed."
        say "Stop here (Ctrl-C) and put a CPU build into .venv first, or add an index that has one:"
        say "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    fi
    "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        -c "$root/constraints.txt" -e "$root$extras"
    if [ "$environment" = test ]; then
        "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            -c "$root/constraints.txt" -e "${root}[examples]" ||
            say "sb3-contrib and tensorboard could not be installed: the tests that need them are skipped"
    fi
    rm -f "$root"/.venv/.stamp-"$environment"-*
    : >"$stamp"
fi
