#!/bin/bash
# systemd_host.sh FOLDER BIN PATH...: start systemd as process 1 over a copy of this host's files, run FOLDER/steps.sh in
# it and power off. PATH...: what lies in file systems of its own and is needed there. For namespaces of its own:
#     unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child
# Nothing is written outside FOLDER; exit 77: this host does not allow it.
set -eu
folder=$1 bin=$2
shift 2
unable() { echo "systemd_host.sh: $*" >&2; exit 77; }

mount --make-rprivate / || unable "no mounts of its own"
mount -t tmpfs tmpfs "$folder/host"
cd "$folder/host"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root || unable "no overlay of /"
cd root
for name in run tmp; do mount -t tmpfs tmpfs $name; done
chmod 1777 tmp
for path in "$@"; do
    [ -e ".$path" ] || mkdir -p ".$path"
    mount --rbind "$path" ".$path"
done
mount -t proc proc proc
mount -o bind,ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys || unable "no sysfs"
mount -t tmpfs tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
if ! mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd 2>/dev/null; then
    umount sys/fs/cgroup
    mount -t cgroup2 cgroup2 sys/fs/cgroup || unable "no control groups"
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified || unable "no control groups"
fi
mount --rbind /dev dev
mkdir run/share run/lock
mount --bind "$folder" run/share
mkdir oldroot
pivot_root . oldroot
umount -l /oldroot
cd /

# slurmctld wants an address other than the loopback one.
hostname localhost
ip link set lo up
ip link add v0 type veth peer name v1 || unable "no network devices"
ip addr add 192.0.2.1/24 dev v0
ip link set v0 up

units=/etc/systemd/system
rm -rf $units/*.wants
for unit in systemd-sysctl.service systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service \
    systemd-tmpfiles-setup-dev.service systemd-tmpfiles-setup.service systemd-remount-fs.service systemd-logind.service \
    systemd-random-seed.service systemd-firstboot.service kmod-static-nodes.service dev-hugepages.mount \
    dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount \
    sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount; do
    ln -sf /dev/null $units/$unit
done
cat >$units/steps.target <<END
[Unit]
Requires=basic.target
After=basic.target
Wants=steps.service
END
cat >$units/steps.service <<END
[Unit]
After=basic.target
[Service]
Type=oneshot
Environment=PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
ExecStart=/bin/bash /run/share/steps.sh
ExecStopPost=/bin/systemctl --force --force poweroff
StandardOutput=append:/run/share/out
StandardError=append:/run/share/out
TimeoutStartSec=550
END
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=steps.target \
    --log-target=console --show-status=no
