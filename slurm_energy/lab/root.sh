#!/bin/sh
# Run a command in another root file system, in mounts of its own: root.sh ROOT PROJECT SHARED COMMAND...
# PROJECT holds this package, and SHARED what both sides see, each at the same path as outside. ROOT itself stays as it
# is: what is written elsewhere is gone with the mounts.
set -eu
if [ "${SLURM_ENERGY_IN_ROOT:-}" != "$$" ]; then
    SLURM_ENERGY_IN_ROOT=$$
    export SLURM_ENERGY_IN_ROOT
    exec unshare --mount --propagation private /bin/sh "$0" "$@"
fi
unset SLURM_ENERGY_IN_ROOT
root=$1 project=$2 shared=$3
shift 3
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/up /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$root,upperdir=/mnt/up,workdir=/mnt/work" /mnt/root
for name in proc sys dev; do mount --rbind "/$name" "/mnt/root/$name"; done
mount -t tmpfs -o mode=1777 tmpfs /mnt/root/tmp
for path in "$project" "$shared"; do
    mkdir -p "/mnt/root$path"
    mount --rbind "$path" "/mnt/root$path"
done
for folder in /mnt/root/opt/slurm-energy-lab/lib/python3*/site-packages; do
    printf '%s\n' "$project" >"$folder/project.pth"
done
cd /mnt/root
mkdir -p oldroot
pivot_root . oldroot
umount -l /oldroot
cd /
exec "$@"
