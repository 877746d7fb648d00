#!/bin/sh
# maintain.sh configure ROLE first|again     after a package of that role was installed or upgraded
# maintain.sh remove ROLE                    before it is removed
# What the packages' scripts have in common, deb and rpm. It changes no file of the site's own, slurm.conf least of all,
# starts and stops nothing of Slurm, and never fails: a package manager that stops half-way would leave a node worse.
set -u
action=$1 role=$2 when=${3:-first}
folder=/usr/lib/slurm-energy
program=$folder/bin/slurm-energy
case $role in
    controller) units='slurm-energyd.service' ;;
    node) units='slurm-energy-flush.timer slurm-energy-repair.timer slurm-energy-repair.service' ;;
    *) units='' ;;
esac

say() { echo "slurm-energy-$role: $*" >&2; }

# What an administrator set for package installations (policy-rc.d, Debian) holds for these units, too.
may_start() {
    [ -d /run/systemd/system ] || return 1
    [ -x /usr/sbin/policy-rc.d ] || return 0
    /usr/sbin/policy-rc.d "${units%% *}" start >/dev/null 2>&1
    [ "$?" -ne 101 ]
}

start_units() {
    [ -n "$units" ] || return 0
    if [ ! -d /run/systemd/system ]; then
        # An image, or a container: what the next boot starts.
        # shellcheck disable=SC2086  # a list of words
        [ "$when" = again ] || systemctl enable $units >/dev/null 2>&1 || :
        return 0
    fi
    systemctl daemon-reload || :
    # shellcheck disable=SC2086
    if ! may_start; then
        say "not started: policy-rc.d forbids it. To start: systemctl start $units"
        [ "$when" = again ] || systemctl enable $units || :
    elif [ "$when" = again ]; then
        systemctl try-restart $units || :
    else
        systemctl enable --now $units || say "not every unit started: systemctl status $units"
    fi
}

configure() {
    if ! "$program" install --role "$role" --by-package --yes; then
        say "not set up yet. When Slurm is installed and configured here: slurm-energy install --role $role"
        return 0
    fi
    start_units
    if [ "$role" = controller ] && [ "$when" = first ]; then
        say "nothing is asked of it yet. To use it: slurm-energy install --role controller --edit-slurm-conf"
    fi
}

remove() {
    # Puts clocks back, also those of running jobs, and delivers the reports.
    if ! "$program" uninstall --role "$role" --by-package --yes; then
        say "what is named above stays. Reports: install this package again, and they are delivered."
        say "Clocks: nvidia-smi --reset-gpu-clocks"
    fi
}

case $action in
    configure) configure ;;
    remove) remove ;;
esac
exit 0
