#!/bin/sh
# One daemon of a lab: service.sh ACTION NAME [NODE], run inside the lab.
set -eu
# shellcheck disable=SC1091
. "$LAB_DIRECTORY/etc/lab.env"
action=$1 name=${2:-} node=${3:-}
pids=$LAB_DIRECTORY/pid log=$LAB_DIRECTORY/log etc=$LAB_DIRECTORY/etc

as() { # as USER COMMAND...
    account=$1
    shift
    setpriv --reuid "$account" --regid "$(id -g "$account")" --init-groups -- "$@"
}

within() { # within SECONDS WHAT COMMAND...: try until it succeeds
    limit=$(($(date +%s) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$limit" ] || { echo "$what is not ready in time" >&2 && return 1; }
        sleep 0.1
    done
}

pid_file() { printf '%s/%s%s.pid' "$pids" "$name" "${node:+-$node}"; }

alive() {
    [ -s "$(pid_file)" ] && kill -0 "$(cat "$(pid_file)")" 2>/dev/null &&
        ! grep -q '^State:.Z' "/proc/$(cat "$(pid_file)")/status" 2>/dev/null
}
gone() { ! alive; }

background() { # background USER LOG COMMAND...
    user=$1 output=$2
    shift 2
    setsid setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups -- "$@" \
        </dev/null >>"$log/$output" 2>&1 &
    printf '%s\n' "$!" >"$(pid_file)"
}

# Without slurmctld sinfo would only wait for its own time limit.
nodes_settled() { ! sh "$0" alive slurmctld || nodes_idle; }

nodes_idle() { # every node answers and none is down, drained or unknown
    states=$(timeout 5 sinfo -h -N -o '%N %T' | sort -u) || return 1
    [ "$(printf '%s\n' "$states" | grep -c ' idle$')" -eq "$(echo "$LAB_NODES" | wc -w)" ]
}

nodes_known() {
    states=$(timeout 5 sinfo -h -N -o %T) || return 1
    case $states in *unk*) return 1 ;; esac
}

accounting_answers() { timeout 5 sacctmgr -nP list cluster format=cluster | grep -qx "$LAB_CLUSTER"; }

add_accounts() {
    timeout 20 sacctmgr -i add account lab Description=lab Organization=lab
    for user in $LAB_USERS; do timeout 20 sacctmgr -i add user "$user" Account=lab; done
}

start() {
    case $name in
        munge)
            install -d -o munge -g munge -m 755 /run/munge
            as munge munged --key-file="$etc/munge.key" --log-file="$LAB_DIRECTORY/munge/munged.log" \
                --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed --socket=/run/munge/munge.socket.2
            cp /run/munge/munged.pid "$(pid_file)"
            ;;
        mariadb)
            install -d -o slurm -g "$(id -g slurm)" -m 755 /run/mysqld
            background slurm mariadb.log mariadbd --defaults-file="$etc/mariadb.cnf"
            within 30 MariaDB mariadb -u root --socket=/run/mysqld/mysqld.sock -e 'SELECT 1'
            mariadb -u root --socket=/run/mysqld/mysqld.sock -e "CREATE DATABASE IF NOT EXISTS slurm_acct_db;
                CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED BY 'slurm';
                GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
            ;;
        slurmdbd)
            slurmdbd
            within 30 slurmdbd timeout 5 sacctmgr -n list cluster
            ;;
        slurmctld)
            slurmctld -f "$SLURM_CONF"
            within 5 slurmctld alive
            ;;
        slurmd)
            mkdir -p "$LAB_SLURMD_SPOOL/$node"
            slurmd -f "$SLURM_CONF" -N "$node"
            ;;
        energyd) background slurm energyd.log "$LAB_PYTHON" -I -m slurm_energy.daemon.app --config "$SLURM_ENERGY_CONFIG" ;;
        *) echo "unknown service $name" >&2 && return 2 ;;
    esac
}

stop() { # stop SIGNAL
    alive || return 0
    kill "-$1" "$(cat "$(pid_file)")" || return 0
    kill -CONT "$(cat "$(pid_file)")" 2>/dev/null || : # a paused one would never see it
    within 10 "the end of $name" gone
}

# What the systemd timers do on a real node: deliver reports, and close what a cut-off hook left. A node with nothing
# to deliver tells how it is at the start and every five minutes, and one that holds a job is looked at now and then.
timers() {
    second=0
    while sleep 1; do
        second=$((second + 1))
        for node in $LAB_NODES; do
            spool=$LAB_DIRECTORY/hooks-spool/$node
            tells=$((second % 300))
            if [ "$tells" -eq 1 ] || { [ $((second % LAB_REPAIR_SECONDS)) -eq 0 ] &&
                any_file "$spool/active" "$spool/pending" "$LAB_DIRECTORY/hooks-run/$node"; }; then
                hook repair
            fi
            if [ "$tells" -eq 1 ] || any_file "$spool/reports"; then
                hook flush
            fi
        done
    done >>"$log/timers.log" 2>&1
}

any_file() { # any_file FOLDER...: without a process, since it is asked of every node every second
    for folder; do
        for file in "$folder"/*.json "$folder"/*/*.json; do
            [ ! -e "$file" ] || return 0
        done
    done
    return 1
}

hook() { # hook VERB
    SLURMD_NODENAME=$node timeout 30 "$LAB_PYTHON" -I -m slurm_energy.node.main "$1" || :
}

case $action in
    start) start ;;
    stop) stop TERM ;;
    kill) stop KILL ;;
    pause) kill -STOP "$(cat "$(pid_file)")" ;;
    resume) kill -CONT "$(cat "$(pid_file)")" ;;
    timers) timers ;;
    alive) alive ;;
    wait)
        case $name in
            nodes) within 60 'every node' nodes_settled && nodes_idle ;;
            slurmctld) within 30 slurmctld nodes_known ;;
            accounting) within 30 'the cluster in slurmdbd' accounting_answers && add_accounts ;;
            energyd) within 60 slurm-energyd test -S "$LAB_DIRECTORY/run/energyd.sock" ;;
        esac
        ;;
    *) echo "usage: service.sh start|stop|kill|pause|resume|wait|timers NAME [NODE]" >&2 && exit 2 ;;
esac
