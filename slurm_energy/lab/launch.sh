#!/bin/sh
# Hold a lab's namespaces: launch.sh DIRECTORY owned|detached keep|remove
# owned: standard input is a pipe whose other end the caller holds; when the caller is gone, by whatever
# signal, the pipe ends and everything inside dies with the PID namespace, and the mounts vanish.
set -eu
directory=$1 mode=$2 folder=$3
# shellcheck disable=SC1091
. "$directory/etc/lab.env"
here=$(dirname "$0")
exec 3<&0 0</dev/null
network=''
join=''
case $LAB_NETWORK in
    host) ;;
    shared) join="nsenter --net=/proc/$LAB_NETWORK_OF/ns/net --" ;;
    *) network=--net ;;
esac
# setpriv: should this script itself be killed, unshare dies too, and --kill-child takes the lab along.
# shellcheck disable=SC2086
setpriv --pdeathsig KILL $join unshare --mount --pid --uts --ipc $network --fork --kill-child --propagation private \
    /bin/sh "$here/entry.sh" "$directory" 3<&- >>"$directory/log/entry.log" 2>&1 &
child=$!
watcher=''
if [ "$mode" = owned ]; then
    (read -r _ <&3 || { : >"$directory/run/abandoned" && kill -KILL "$child"; }) 2>/dev/null &
    watcher=$!
fi
exec 3<&-
status=0
wait "$child" || status=$?
[ -z "$watcher" ] || kill "$watcher" 2>/dev/null || :
# A caller that lives removes the folder himself, once he has read the logs.
if [ "$folder" = remove ] && [ -e "$directory/run/abandoned" ]; then
    # The lock: another user may start a lab of this name at this moment.
    flock --nonblock "$directory" rm -rf "$directory" || :
    case $directory in /tmp/slurm-energy-[0-9]*/*) rmdir "${directory%/*}" 2>/dev/null || : ;; esac
fi
exit "$status"
