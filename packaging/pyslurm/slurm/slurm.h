/*
 * Slurm 26.05's own header with what pyslurm 25.11 still calls by a job number. The folder above goes first in the
 * include path (scripts/pyslurm-for-root.sh); neither Slurm's headers nor pyslurm's distribution are changed.
 */
#ifndef SLURM_ENERGY_PYSLURM_BRIDGE_H
#define SLURM_ENERGY_PYSLURM_BRIDGE_H

/* The header's own wrappers, which take a job number too. */
#define SLURM_BACKWARD_COMPAT 1
#include_next <slurm/slurm.h>

/* In 26.05 these take a slurm_step_id_t, of which the job number was all. */
static inline slurm_step_id_t energy_step_of(uint32_t job_id)
{
	slurm_step_id_t step_id = SLURM_STEP_ID_INITIALIZER;
	step_id.job_id = job_id;
	return step_id;
}

static inline int energy_load_job(job_info_msg_t **resp, uint32_t job_id, uint16_t flags)
{
	return slurm_load_job(resp, energy_step_of(job_id), flags);
}

static inline int energy_suspend(uint32_t job_id)
{
	return slurm_suspend(energy_step_of(job_id));
}

static inline int energy_resume(uint32_t job_id)
{
	return slurm_resume(energy_step_of(job_id));
}

static inline int energy_requeue(uint32_t job_id, uint32_t flags)
{
	return slurm_requeue(energy_step_of(job_id), flags);
}

static inline int energy_notify_job(uint32_t job_id, char *message)
{
	return slurm_notify_job(energy_step_of(job_id), message);
}

static inline long energy_get_rem_time(uint32_t job_id)
{
	return slurm_get_rem_time(energy_step_of(job_id));
}

static inline int energy_get_end_time(uint32_t job_id, time_t *end_time)
{
	return slurm_get_end_time(energy_step_of(job_id), end_time);
}

static inline int energy_pid2jobid(pid_t pid, uint32_t *job_id)
{
	slurm_step_id_t step_id = SLURM_STEP_ID_INITIALIZER;
	int code = slurm_pid2jobid(pid, &step_id);
	*job_id = step_id.job_id;
	return code;
}

#undef slurm_load_job
#define slurm_load_job energy_load_job
#undef slurm_suspend
#define slurm_suspend energy_suspend
#undef slurm_resume
#define slurm_resume energy_resume
#undef slurm_requeue
#define slurm_requeue energy_requeue
#undef slurm_notify_job
#define slurm_notify_job energy_notify_job
#undef slurm_get_rem_time
#define slurm_get_rem_time energy_get_rem_time
#undef slurm_get_end_time
#define slurm_get_end_time energy_get_end_time
#undef slurm_pid2jobid
#define slurm_pid2jobid energy_pid2jobid

/* Names that 26.05 has renamed or dropped. */
#define slurm_free_ctl_conf slurm_free_conf
#ifndef ESLURM_ERROR_ON_DESC_TO_RECORD_COPY
#define ESLURM_ERROR_ON_DESC_TO_RECORD_COPY 2007
#endif

#endif
