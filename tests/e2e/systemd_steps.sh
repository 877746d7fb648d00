# shellcheck shell=sh
# What an administrator does with the units under systemd. Each step prints its name, then what came of it.
units=/etc/systemd/system
drop_in=$units/slurmctld.service.d/slurm-energy.conf

step() { printf '\n=== %s\n' "$1"; since=$(date '+%F %T'); }
start() {
    began=$(date +%s)
    systemctl daemon-reload
    systemctl restart slurmctld
    for _ in $(seq 100); do
        scontrol ping >/dev/null 2>&1 && break
        sleep 0.1
    done
    echo "slurmctld $(systemctl is-active slurmctld) after $(($(date +%s) - began)) s"
    grep -i '^JobSubmitPlugins' /etc/slurm/slurm.conf || echo "no JobSubmitPlugins"
    journalctl -u slurmctld --no-pager -o cat --since "$since" | grep -v '^slurmctld:'
}

install -d -o slurm /var/lib/slurm-test
install -d -m 700 -o munge /etc/munge /var/lib/munge /var/log/munge
[ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=64 count=1 2>/dev/null
chown munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
mkdir -p /etc/slurm
cat >/etc/slurm/slurm.conf <<END
ClusterName=site
SlurmctldHost=localhost
SlurmUser=slurm
StateSaveLocation=/var/lib/slurm-test
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName=n1 NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000 Gres=gpu:a100:2 State=UNKNOWN
PartitionName=p Nodes=n1 Default=YES State=UP
END

step install
systemctl start munge
slurm-energy install --role controller --role node --build-plugin --edit-slurm-conf --yes 2>&1
systemctl daemon-reload

step start
start
plugin=$(echo /usr/lib/*/slurm-wlm/job_submit_energy.so)

step "a damaged plugin"
head -c 3000 "$plugin" >/run/part && cp /run/part "$plugin"
start

step "no plugin and no compiler"
rm -f "$plugin"
find /usr/local/lib /var/lib -name 'job_submit_energy.so*' -delete
mv /usr/bin/make /usr/bin/make.away
start

step "the compiler is back"
mv /usr/bin/make.away /usr/bin/make
start
# A busy machine may not be done with the compiling in the time that a start may take: each start tries again.
for _ in 1 2 3; do
    grep -q ^JobSubmitPlugins /etc/slurm/slurm.conf || start
done

step "no interpreter"
cp $drop_in /run/drop-in
sed -i 's|\(kill-after=5 55\) \S*|\1 /nowhere/python|' $drop_in
start

step "a check that hangs"
printf '#!/bin/sh\ntrap "" TERM\nsleep 1000\n' >/run/hang
chmod 755 /run/hang
cp /run/hang /usr/local/bin/hang
sed 's|--kill-after=5 55 \S*|--kill-after=1 2 /usr/local/bin/hang|' /run/drop-in >$drop_in
start
cp /run/drop-in $drop_in

step "the daemon"
systemctl daemon-reload
systemctl start slurm-energyd
echo "slurm-energyd $(systemctl is-active slurm-energyd)"
systemctl show slurm-energyd -p User -p NRestarts

step "the timers"
for name in repair flush; do
    systemctl start slurm-energy-$name.timer
    # The daemon of a busy machine may answer too late the first time.
    for _ in 1 2 3; do systemctl start slurm-energy-$name.service 2>/dev/null && break; done
    echo "$name $(systemctl is-active slurm-energy-$name.timer) $(systemctl show slurm-energy-$name -p Result --value)"
done
journalctl -u slurm-energy-repair -u slurm-energy-flush --no-pager -o cat --since "$since"

step "uninstall"
systemctl stop slurm-energyd
slurm-energy uninstall --role controller --role node --edit-slurm-conf --yes 2>&1
start
echo "units left: $(systemctl list-unit-files --no-legend 'slurm-energy*' | wc -l), $(ls $units/slurmctld.service.d 2>&1)"
