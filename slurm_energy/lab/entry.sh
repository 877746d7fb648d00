#!/bin/sh
# PID 1 of a lab, in private namespaces or in a container: entry.sh DIRECTORY
# Starts every daemon, then stays to reap orphans; SIGTERM stops all and ends the lab.
set -eu
[ "$$" -eq 1 ] || { echo 'entry.sh must be process 1 of a PID namespace or container' >&2 && exit 2; }
directory=$1
# shellcheck disable=SC1091
. "$directory/etc/lab.env"
service=$(dirname "$0")/service.sh
stage=starting

say() { printf '%s\n' "$1" >>"$LAB_DIRECTORY/log/start.log"; }
failed() { [ "$stage" = up ] || say "failed while $stage"; }
trap failed EXIT

# Show files below folders that only root may enter (a clone in /root, say) to the lab's users, at the same
# path: an empty folder covers the closed one, and only what the lab needs is bound back into it.
expose() {
    mkdir -p /run/exposed
    number=0
    while read -r closed path; do
        number=$((number + 1))
        mkdir "/run/exposed/$number"
        mount --bind "$path" "/run/exposed/$number"
    done <"$LAB_DIRECTORY/etc/exposed"
    covered=''
    number=0
    while read -r closed path; do
        number=$((number + 1))
        case " $covered " in
            *" $closed "*) ;;
            *) mount -t tmpfs -o mode=755 tmpfs "$closed" && covered="$covered $closed" ;;
        esac
        mkdir -p "$path"
        mount --bind "/run/exposed/$number" "$path"
    done <"$LAB_DIRECTORY/etc/exposed"
}

# Slurm refuses to start with nothing but loopback addresses ("Address family not supported by protocol").
network() {
    ip link set lo up
    case $LAB_NETWORK in
        veth) ip link add lab0 type veth peer name lab1 && ip link set lab1 up ;;
        dummy) ip link add lab0 type dummy ;;
    esac
    ip addr add 192.0.2.1/24 dev lab0
    ip link set lab0 up
}

private() {
    mount -t proc proc /proc
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    [ ! -s "$LAB_DIRECTORY/etc/exposed" ] || expose
    mount --bind "$LAB_DIRECTORY/etc/passwd" /etc/passwd
    mount --bind "$LAB_DIRECTORY/etc/group" /etc/group
    mount --bind "$LAB_DIRECTORY/etc/shadow" /etc/shadow
    hostname localhost
    case $LAB_NETWORK in host | shared) ;; *) network ;; esac
    [ "$LAB_DEVICES" != mknod ] || mount -t tmpfs -o mode=755 tmpfs "$LAB_DIRECTORY/dev"
}

devices() {
    for minor in $LAB_MINORS; do
        [ -e "$LAB_DIRECTORY/dev/nvidia$minor" ] || mknod -m 666 "$LAB_DIRECTORY/dev/nvidia$minor" c 195 "$minor"
    done
}

others() {
    for process in /proc/[0-9]*; do
        [ "$process" = /proc/1 ] || [ ! -s "$process/maps" ] || return 0
    done
    return 1
}

stop() {
    trap - EXIT
    sh "$service" stop energyd || :
    kill -TERM -1 2>/dev/null || :
    tries=0
    while others && [ "$tries" -lt 30 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    exit 0
}

# Before /proc is mounted again it shows this process under the number that it has outside.
[ "$LAB_PRIVATE" = container ] || read -r outside _ </proc/self/stat
printf '%s\n' "${outside:-1}" >"$LAB_DIRECTORY/run/init.pid"
stage='making the namespaces' && say "$stage"
if [ "$LAB_PRIVATE" = container ]; then
    # Written in place: an engine may have mounted these files.
    cat "$LAB_DIRECTORY/etc/passwd" >/etc/passwd
    cat "$LAB_DIRECTORY/etc/group" >/etc/group
    cat "$LAB_DIRECTORY/etc/shadow" >/etc/shadow
else
    private
fi
trap stop TERM INT
[ "$LAB_DEVICES" != mknod ] || devices
stage='starting munge' && say "$stage"
sh "$service" start munge
if [ "$LAB_ACCOUNTING" = yes ]; then
    stage='starting MariaDB' && say "$stage"
    sh "$service" start mariadb
    stage='starting slurmdbd' && say "$stage"
    sh "$service" start slurmdbd
fi
if [ "$LAB_DAEMON" = yes ]; then
    stage='starting slurm-energyd' && say "$stage"
    sh "$service" start energyd
fi
stage='starting slurmctld' && say "$stage"
sh "$service" start slurmctld
stage='starting slurmd' && say "$stage"
for node in $LAB_NODES; do sh "$service" start slurmd "$node"; done
stage='waiting for the nodes' && say "$stage"
sh "$service" wait nodes
if [ "$LAB_ACCOUNTING" != no ]; then
    stage='adding accounts' && say "$stage"
    sh "$service" wait accounting
fi
if [ "$LAB_DAEMON" = yes ]; then
    stage='waiting for slurm-energyd' && say "$stage"
    sh "$service" wait energyd
fi
[ "$LAB_ENERGY" = no ] || sh "$service" timers &
: >"$LAB_DIRECTORY/run/up"
stage=up && say 'up'
while :; do
    sleep 3600 &
    wait "$!" || :
done
