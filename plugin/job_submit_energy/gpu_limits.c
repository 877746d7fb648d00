/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whether Slurm takes a job with another number of GPUs as it takes the original.
 *
 * Partitions are read as partition.h says. Of accounts and QOS only whether a limit is there is looked at: what is
 * left of it is Slurm's to count. Whether a node is large enough is the daemon's to say, which knows the nodes.
 */
#include <slurm/slurm.h>
#include <slurm/slurmdb.h>
#include <string.h>

#include "gpu_count.h"
#include "partition.h"
#include "partition_order.h"

#define MAX_NAME_BYTES 256
#define MAX_PARENTS 64
#define WEAK __attribute__((weak))
#define ENFORCES_LIMITS SLURM_BIT(1)	/* AccountingStorageEnforce=limits, or more */

extern slurm_conf_t slurm_conf WEAK;
extern void *acct_db_conn WEAK;
extern int assoc_mgr_fill_in_assoc(void *connection, slurmdb_assoc_rec_t *association, int enforce,
				   slurmdb_assoc_rec_t **found, bool locked) WEAK;
extern int assoc_mgr_fill_in_qos(void *connection, slurmdb_qos_rec_t *qos, int enforce,
				 slurmdb_qos_rec_t **found, bool locked) WEAK;

/* Kinds of locks in the order of all releases known here, with room for more: assoc, file, qos, res, tres, user, ... */
typedef struct {
	int kinds[16];
} assoc_locks_t;

extern void assoc_mgr_lock(assoc_locks_t *locks) WEAK;
extern void assoc_mgr_unlock(assoc_locks_t *locks) WEAK;

#define LOCK_ASSOC 0
#define LOCK_QOS 2
#define LOCK_USER 5	/* assoc_mgr_fill_in_assoc reads users too */
#define READ_LOCK 1

/* Call look for each partition that the job names, or for the default one, until it objects. */
static const char *_each_partition(const job_desc_msg_t *job,
				   const char *(*look)(const energy_partition_t *partition, void *about), void *about)
{
	static const char unknown[] = "one of its partitions is not known";
	const char *names = energy_is_set(job->partition) ? job->partition : NULL;

	while (true) {
		size_t length = names ? strcspn(names, ",") : 0;
		energy_partition_t partition = { 0 };
		char name[MAX_NAME_BYTES];
		const char *objection;

		if (length >= sizeof(name))
			return unknown;
		if (names) {
			memcpy(name, names, length);
			name[length] = '\0';
		}
		if (!energy_partition_read(names ? name : NULL, &partition))
			return unknown;
		objection = look(&partition, about);
		energy_partition_free(&partition);
		if (objection || !names || !names[length])
			return objection;
		names += length + 1;
	}
}

typedef struct {
	bool is_first;
	uint32_t minutes;
} default_time_t;

static const char *_default_time(const energy_partition_t *partition, void *about)
{
	default_time_t *found = about;
	uint32_t minutes = partition->default_time;

	if (minutes == NO_VAL)
		minutes = partition->max_time;
	if (!found->is_first && (minutes != found->minutes))
		return "default times differ";
	*found = (default_time_t) { false, minutes };
	return NULL;
}

extern uint32_t energy_gpu_default_time(const job_desc_msg_t *job)
{
	default_time_t found = { true, NO_VAL };

	return _each_partition(job, _default_time, &found) ? NO_VAL : found.minutes;
}

typedef struct {
	const job_desc_msg_t *job;
	const energy_gpu_option_t *option;
	bool is_more;		/* GPUs than asked for */
	bool is_wider;		/* it needs more CPUs than the job's own number */
	energy_cluster_rules_t rules;
} fit_t;

static bool _is_by_cpu(uint64_t memory)
{
	return (memory != NO_VAL64) && (memory & MEM_PER_CPU) && (memory & ~MEM_PER_CPU);
}

/* Whether memory follows CPUs, of which Slurm gives more than asked for where it gives whole cores. */
static bool _memory_follows_cpus(const fit_t *fit, const energy_partition_t *partition)
{
	const job_desc_msg_t *job = fit->job;

	if (energy_is_set(job->mem_per_tres))
		return false;
	if (job->pn_min_memory != NO_VAL64)
		return _is_by_cpu(job->pn_min_memory);
	return _is_by_cpu(partition->default_memory ? partition->default_memory : fit->rules.default_memory);
}

static const char *_fits(const energy_partition_t *partition, void *about)
{
	const fit_t *fit = about;
	const energy_gpu_option_t *option = fit->option;
	const job_desc_msg_t *job = fit->job;

	if (!partition->max_share)
		return "its partition gives whole nodes";
	if ((option->time_limit != job->time_limit) && (option->time_limit > partition->max_time))
		return "fewer GPUs would need more time than MaxTime";
	if (option->nodes && (option->nodes < partition->min_nodes))
		return "fewer nodes than MinNodes";
	/* Several tasks without --nodes: on how many nodes Slurm places them is not known. */
	if (!option->nodes && (partition->min_nodes > 1))
		return "its number of nodes is open, and its partition has MinNodes";
	if (!fit->is_more)
		return NULL;
	if (!option->nodes)
		return "its number of nodes is open (give --nodes): more GPUs may fit on none";
	if (option->nodes > partition->max_nodes)
		return "more nodes than MaxNodes";
	if (fit->rules.has_job_defaults || partition->job_defaults.length)
		return "its partition or cluster gives CPUs or memory by GPU (JobDefaults)";
	if (fit->is_wider && _memory_follows_cpus(fit, partition))
		return "its memory is by CPU, and more GPUs would need more CPUs";
	if (option->cpus > partition->total_cpus)
		return "more CPUs than its partition has";
	if (energy_is_given32(partition->max_cpus_per_node) || energy_is_given32(partition->max_cpus_per_socket))
		return "its partition limits the CPUs of a node";
	if (((option->memory != job->pn_min_memory) || energy_is_set(job->mem_per_tres)) && partition->max_memory)
		return "its partition limits the memory of a node";
	return NULL;
}

static bool _limits_of_parents(const slurmdb_assoc_rec_t *association, bool is_more)
{
	for (size_t i = 0; association && (i < MAX_PARENTS); i++) {
		const slurmdb_assoc_rec_t *parent = association->usage ? association->usage->parent_assoc_ptr : NULL;

		if (energy_is_set(association->grp_tres_mins) || energy_is_set(association->grp_tres_run_mins) ||
		    energy_is_given32(association->grp_wall))
			return true;
		if (is_more && energy_is_set(association->grp_tres))
			return true;
		association = parent;
	}
	return association != NULL;
}

static bool _limits_of_account(const slurmdb_assoc_rec_t *account, bool is_more, bool is_longer)
{
	if (is_longer && (energy_is_given32(account->max_wall_pj) || energy_is_set(account->max_tres_mins_pj) ||
			  energy_is_set(account->max_tres_run_mins)))
		return true;
	if (is_more && (energy_is_set(account->max_tres_pj) || energy_is_set(account->max_tres_pn) ||
			energy_is_set(account->max_tres_mins_pj) || energy_is_set(account->max_tres_run_mins)))
		return true;
	return _limits_of_parents(account, is_more);
}

static bool _limits_of_qos(const slurmdb_qos_rec_t *qos, bool is_more, bool is_longer)
{
	const char *always[] = {
		qos->grp_tres_mins, qos->grp_tres_run_mins, qos->max_tres_mins_pj, qos->max_tres_run_mins_pa,
		qos->max_tres_run_mins_pu,
	};
	const char *upwards[] = {
		qos->grp_tres, qos->max_tres_pa, qos->max_tres_pj, qos->max_tres_pn, qos->max_tres_pu,
	};

	for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
		if (energy_is_set(always[i]))
			return true;
	}
	for (size_t i = 0; is_more && (i < sizeof(upwards) / sizeof(upwards[0])); i++) {
		if (energy_is_set(upwards[i]))
			return true;
	}
	if (!is_more && energy_is_set(qos->min_tres_pj))
		return true;
	return is_longer && (energy_is_given32(qos->max_wall_pj) || energy_is_given32(qos->grp_wall));
}

typedef struct {
	bool is_more, is_longer;
} change_t;

/* With the locks held. */
static bool _qos_limits(slurmdb_qos_rec_t *asked, const change_t *change)
{
	slurmdb_qos_rec_t *found = NULL;

	if (assoc_mgr_fill_in_qos(acct_db_conn, asked, 0, &found, true) != SLURM_SUCCESS)
		return true;
	return found && _limits_of_qos(found, change->is_more, change->is_longer);
}

static const char *_partition_qos(const energy_partition_t *partition, void *about)
{
	slurmdb_qos_rec_t asked;

	if (!partition->qos.length)
		return NULL;
	memset(&asked, 0, sizeof(asked));
	asked.name = (char *) partition->qos.bytes;
	return _qos_limits(&asked, about) ? "the QOS of its partition limits GPUs or time" : NULL;
}

/* With the locks held: the job's account, its QOS, and those of its partitions. */
static const char *_against_limits(const job_desc_msg_t *job, uint32_t submit_uid, change_t *change)
{
	slurmdb_assoc_rec_t account, *found = NULL;
	slurmdb_qos_rec_t qos;

	memset(&account, 0, sizeof(account));
	account.acct = job->account;
	account.uid = (job->user_id == NO_VAL) ? submit_uid : job->user_id;
	if ((assoc_mgr_fill_in_assoc(acct_db_conn, &account, 0, &found, true) != SLURM_SUCCESS) || !found)
		return "its account is not known";
	if (_limits_of_account(found, change->is_more, change->is_longer))
		return "its account limits GPUs or time";
	memset(&qos, 0, sizeof(qos));
	if (energy_is_set(job->qos))
		qos.name = job->qos;
	else if (found->def_qos_id)
		qos.id = found->def_qos_id;
	else
		return "neither it nor its account names a QOS: the one that Slurm gives it may limit GPUs or time";
	if (_qos_limits(&qos, change))
		return "its QOS limits GPUs or time";
	return _each_partition(job, _partition_qos, change);
}

typedef struct {
	const job_desc_msg_t *job;
	uint32_t submit_uid;
} who_t;

static const char *_own_association(const energy_partition_t *partition, void *about)
{
	const who_t *who = about;

	return energy_has_partition_association(who->job, who->submit_uid, partition) ? "an association" : NULL;
}

static const char *_account_objection(const job_desc_msg_t *job, uint32_t submit_uid, change_t change)
{
	assoc_locks_t locks = { { 0 } };
	const char *objection;

	if (!&slurm_conf)
		return "the limits of accounts are not known";
	if (!(slurm_conf.accounting_storage_enforce & ENFORCES_LIMITS))
		return NULL;
	if (!assoc_mgr_fill_in_assoc || !assoc_mgr_fill_in_qos || !assoc_mgr_lock || !assoc_mgr_unlock ||
	    !&acct_db_conn)
		return "the limits of accounts are not known";
	if (_each_partition(job, _own_association, &(who_t) { job, submit_uid }))
		return "its account has an association for one partition";
	locks.kinds[LOCK_ASSOC] = READ_LOCK;
	locks.kinds[LOCK_QOS] = READ_LOCK;
	locks.kinds[LOCK_USER] = READ_LOCK;
	assoc_mgr_lock(&locks);
	objection = _against_limits(job, submit_uid, &change);
	assoc_mgr_unlock(&locks);
	return objection;
}

extern const char *energy_gpu_objection(const job_desc_msg_t *job, uint32_t submit_uid,
					const energy_gpu_plan_t *plan, const energy_gpu_option_t *option)
{
	const energy_gpu_option_t *own = energy_gpu_option(plan, plan->asked);
	fit_t fit = {
		.job = job,
		.option = option,
		.is_more = option->gpus > plan->asked,
		.is_wider = !own || (option->cpus > own->cpus),
		.rules = energy_cluster_rules(),
	};
	const char *objection;

	if (fit.is_more && ((energy_is_set(job->cpus_per_tres) && !energy_gpu_share(job->cpus_per_tres)) ||
			    (energy_is_set(job->mem_per_tres) && !energy_gpu_share(job->mem_per_tres))))
		return "its CPUs or memory for each GPU are no plain number";
	/* What the user says of nodes may leave too few of those that are large enough. */
	if (fit.is_more && (energy_is_set(job->features) || energy_is_set(job->exc_nodes) ||
			    energy_is_given32(job->pn_min_tmp_disk)))
		return "it limits its nodes: more GPUs may fit on none of them";
	if (fit.is_more && ((option->memory != job->pn_min_memory) || energy_is_set(job->mem_per_tres)) &&
	    fit.rules.limits_memory)
		return "the cluster limits the memory of a node";
	objection = _each_partition(job, _fits, &fit);
	if (objection)
		return objection;
	return _account_objection(job, submit_uid,
				  (change_t) { fit.is_more, option->time_limit != job->time_limit });
}
