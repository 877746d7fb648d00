# shellcheck shell=sh
# Purging the common package: settings, options of sbatch and logs. The database stays, and is named.
plugins() { ls -d /usr/lib/*/slurm-wlm /usr/lib64/slurm /usr/lib/slurm 2>/dev/null || :; }
rm -rf /etc/slurm-energy /var/log/slurm-energy-hook.log
for folder in $(plugins); do
    rm -f "$folder/spank_energy.so"
    [ -e "$folder/job_submit_energy.so" ] || continue
    if cat /etc/slurm/*.conf /etc/slurm-llnl/*.conf 2>/dev/null | grep -qi '^[[:space:]]*JobSubmitPlugins.*energy'; then
        echo "slurm-energy: $folder/job_submit_energy.so stays: slurm.conf names it. Take energy out of" \
            "JobSubmitPlugins, restart slurmctld, then remove it." >&2
    else
        rm -f "$folder/job_submit_energy.so"
    fi
done
for kept in /var/lib/slurm-energy /var/spool/slurm-energy /usr/local/lib/slurm-energy; do
    [ ! -e "$kept" ] || echo "slurm-energy: $kept stays; when no longer needed: rm -r $kept" >&2
done
