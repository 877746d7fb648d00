#!/bin/sh
# hosts.sh site DIRECTORY NETWORK     process 1 of a trial site, in namespaces of its own
# hosts.sh host DIRECTORY NAME IMAGE  one of its hosts, started inside the site
# Each host has a root, a hostname and a /run of its own; all share one network. A root is the machine's own files, on
# top of them the layer of the host IMAGE unless that is -, and a layer that only this host sees.
set -eu
kind=$1 directory=$2 name=$3 image=${4:-}
own=$directory/$name

tell_pid() { # The old /proc knows this process by its number outside.
    read -r outside _ </proc/self/stat
    printf '%s\n' "$outside" >"$1.new"
    mv "$1.new" "$1"
}

if [ "$kind" = site ]; then
    tell_pid "$directory/pid"
    # The layers cannot lie in what they are put on.
    mount -t tmpfs -o mode=755 tmpfs "$directory"
    ip link set lo up
    case $name in
        veth) ip link add site0 type veth peer name site1 && ip link set site1 up ;;
        dummy) ip link add site0 type dummy ;;
    esac
    ip addr add 192.0.2.1/24 dev site0
    ip link set site0 up
    : >"$directory/ready"
    while :; do
        sleep 3600 &
        wait "$!" || :
    done
fi

lower=/
[ "$image" = - ] || lower=$directory/$image/up:/
mkdir -p "$own/up" "$own/work" "$own/root"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$own/up,workdir=$own/work" "$own/root"
# A host begins without what hooks that were tried by hand have left on the machine.
[ "$image" != - ] || (cd "$own/root" && rm -rf etc/slurm-energy var/lib/slurm-energy var/spool/slurm-energy)
mount --rbind /dev "$own/root/dev"
mount --rbind /sys "$own/root/sys"
mount -t tmpfs -o mode=755 tmpfs "$own/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$own/root/tmp"
mount -t proc proc "$own/root/proc"
hostname "$name"
mkdir -p "$own/root/run/systemd/system"
tell_pid "$own/pid"
exec chroot "$own/root" /bin/sleep infinity
