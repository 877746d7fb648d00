/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The `decide` request: every key is absent where Slurm has no value. */
#include <inttypes.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <string.h>

#include "../common/request.h"
#include "job.h"

/*
 * Raw bytes of one text; three times as many when every byte is escaped. All texts at their bound fit
 * a request of ENERGY_REQUEST_BYTES.
 */
#define NAME_BYTES 256
#define TEXT_BYTES 1024
#define LIST_BYTES 2048

/* JOB_SHARED_TOPO: the nodes of a whole block alone; headers have it from 24.11 on. */
#define SHARED_TOPO 4

static void _text(energy_request_t *request, const char *key, const char *value)
{
	if (!value || !value[0])
		return;
	/* Half of such a text would say something else: better not to ask. */
	if (strnlen(value, TEXT_BYTES + 1) > TEXT_BYTES)
		request->overflow = true;
	else
		energy_request_text(request, key, value, TEXT_BYTES);
}

/* A text whose beginning is enough. */
static void _cut_text(energy_request_t *request, const char *key, const char *value, size_t limit)
{
	if (value && value[0])
		energy_request_text(request, key, value, limit);
}

static void _number16(energy_request_t *request, const char *key, uint16_t value)
{
	if ((value != NO_VAL16) && (value != INFINITE16))
		energy_request_number(request, key, value);
}

static void _number32(energy_request_t *request, const char *key, uint32_t value)
{
	if ((value != NO_VAL) && (value != INFINITE))
		energy_request_number(request, key, value);
}

/* Numbers of which 0 means that the user said nothing. */
static void _count32(energy_request_t *request, const char *key, uint32_t value)
{
	if (value)
		_number32(request, key, value);
}

static void _minutes(energy_request_t *request, const char *key, uint32_t value)
{
	if (value == INFINITE)
		energy_request_text(request, key, "infinite", TEXT_BYTES);
	else
		_number32(request, key, value);
}

static void _time(energy_request_t *request, const char *key, time_t value)
{
	if ((value > 0) && (value != (time_t) NO_VAL) && (value != (time_t) INFINITE))
		energy_request_number(request, key, (uint64_t) value);
}

static void _memory(energy_request_t *request, uint64_t value)
{
	if ((value == NO_VAL64) || (value == INFINITE64))
		return;
	if (value & MEM_PER_CPU)
		energy_request_number(request, "mem_per_cpu_mib", value & ~MEM_PER_CPU);
	else
		energy_request_number(request, "mem_per_node_mib", value);
}

static void _who(energy_request_t *request, const job_desc_msg_t *job, uint32_t submit_uid)
{
	char client[32];

	snprintf(client, sizeof(client), "job_submit/%d.%02d.%d",
		 (int) SLURM_VERSION_MAJOR(SLURM_VERSION_NUMBER),
		 (int) SLURM_VERSION_MINOR(SLURM_VERSION_NUMBER),
		 (int) SLURM_VERSION_MICRO(SLURM_VERSION_NUMBER));
	energy_request_text(request, "client", client, sizeof(client));
	energy_request_number(request, "uid", (job->user_id == NO_VAL) ? submit_uid : job->user_id);
	_number32(request, "gid", job->group_id);
	energy_request_number(request, "submit_uid", submit_uid);
	_cut_text(request, "name", job->name, NAME_BYTES);
	_text(request, "account", job->account);
	_text(request, "qos", job->qos);
	_text(request, "partition", job->partition);
	_text(request, "reservation", job->reservation);
	/* Only the first component of a heterogeneous job carries the script. */
	if (!job->script && !job->script_buf &&
	    ((job->het_job_offset == NO_VAL) || !job->het_job_offset))
		energy_request_number(request, "interactive", 1);
}

static void _size(energy_request_t *request, const job_desc_msg_t *job)
{
	_minutes(request, "time_limit", job->time_limit);
	_minutes(request, "time_min", job->time_min);
	_count32(request, "min_nodes", job->min_nodes);
	_count32(request, "max_nodes", job->max_nodes);
	_count32(request, "num_tasks", job->num_tasks);
	_number16(request, "ntasks_per_node", job->ntasks_per_node);
	_number16(request, "cpus_per_task", job->cpus_per_task);
	_count32(request, "min_cpus", job->min_cpus);
	_count32(request, "max_cpus", job->max_cpus);
	_memory(request, job->pn_min_memory);
	_text(request, "tres_per_job", job->tres_per_job);
	_text(request, "tres_per_node", job->tres_per_node);
	_text(request, "tres_per_socket", job->tres_per_socket);
	_text(request, "tres_per_task", job->tres_per_task);
	_number16(request, "ntasks_per_tres", job->ntasks_per_tres);
	_text(request, "cpus_per_tres", job->cpus_per_tres);
	_text(request, "tres_freq", job->tres_freq);
}

static void _conditions(energy_request_t *request, const job_desc_msg_t *job)
{
	_text(request, "features", job->features);
	_text(request, "prefer", job->prefer);
	_cut_text(request, "array", job->array_inx, LIST_BYTES);
	_number32(request, "het_offset", job->het_job_offset);
	_cut_text(request, "dependency", job->dependency, LIST_BYTES);
	_text(request, "licenses", job->licenses);
	if ((job->shared == JOB_SHARED_NONE) || (job->shared == SHARED_TOPO))
		energy_request_number(request, "exclusive", 1);
	_time(request, "begin_time", job->begin_time);
	_time(request, "slurm_deadline", job->deadline);
	_number16(request, "requeue", job->requeue);
	if (job->contiguous == 1)
		energy_request_number(request, "contiguous", 1);
	if (energy_job_is_tied(job))
		energy_request_number(request, "tied", 1);
	if (!job->priority)
		energy_request_number(request, "held", 1);
}

/* The user may have set these entries by hand, past the options' own checks. */
static void _options(energy_request_t *request, const job_desc_msg_t *job)
{
	const char *mode = energy_job_entry(job, ENERGY_ENTRY_MODE);
	const char *slowdown = energy_job_entry(job, ENERGY_ENTRY_MAX_SLOWDOWN);
	const char *deadline = energy_job_entry(job, ENERGY_ENTRY_DEADLINE);
	const char *start_before = energy_job_entry(job, ENERGY_ENTRY_START_BEFORE);
	const char *quiet = energy_job_entry(job, ENERGY_ENTRY_QUIET);
	const char *trials = energy_job_entry(job, ENERGY_ENTRY_TRIALS);
	const char *redecide = energy_job_entry(job, ENERGY_ENTRY_REDECIDE);
	const char *open = energy_job_entry(job, ENERGY_ENTRY_OPEN);
	const char *terminal = energy_job_entry(job, ENERGY_ENTRY_TERMINAL);
	const char *script = energy_job_entry(job, ENERGY_ENTRY_SCRIPT);
	char number[ENERGY_OPTION_BYTES];

	if (mode && energy_is_mode(mode))
		_text(request, "energy_mode", mode);
	if (slowdown && energy_is_slowdown(slowdown, number))
		_text(request, "energy_max_slowdown", number);
	if (deadline && energy_is_deadline(deadline))
		_text(request, "energy_deadline", deadline);
	if (start_before && energy_is_deadline(start_before))
		_text(request, "energy_start_before", start_before);
	if (quiet && !strcmp(quiet, "1"))
		_text(request, "energy_quiet", quiet);
	if (trials && energy_is_switch(trials))
		_text(request, "energy_trials", trials);
	if (redecide && energy_is_switch(redecide))
		_text(request, "energy_redecide", redecide);
	if (open && energy_is_switch(open))
		_text(request, "energy_open", open);
	if (terminal && !strcmp(terminal, ENERGY_TERMINAL_EXPLAIN))
		_text(request, "energy_explain", "1");
	if (script && energy_is_script(script))
		_text(request, "script", script);
}

/* The numbers of GPUs that the job could be given, `GPUS:NODES:CPUS:MIB` each, the last two of one node; 0: not known. */
static void _gpu_counts(energy_request_t *request, const job_desc_msg_t *job, const energy_gpu_plan_t *plan)
{
	char text[ENERGY_MAX_COUNTS * 48] = "";
	size_t used = 0;

	if (!plan->is_declared)
		return;
	_text(request, "energy_gpus", energy_job_entry(job, ENERGY_ENTRY_GPUS));
	if (plan->refusal) {
		energy_request_text(request, "gpu_refusal", plan->refusal, TEXT_BYTES);
		return;
	}
	energy_request_number(request, "gpu_asked", plan->asked);
	for (size_t i = 0; i < plan->count; i++) {
		const energy_gpu_option_t *option = &plan->options[i];
		uint32_t nodes = option->nodes ? option->nodes : 1;

		used += (size_t) snprintf(text + used, sizeof(text) - used, "%s%u:%u:%u:%" PRIu64, i ? "," : "",
					  option->gpus, option->nodes, (option->cpus + nodes - 1) / nodes,
					  option->node_memory);
	}
	energy_request_text(request, "gpu_options", text, sizeof(text));
}

extern size_t energy_job_request(const job_desc_msg_t *job, uint32_t submit_uid,
				 const energy_gpu_plan_t *plan, char *bytes, size_t size)
{
	energy_request_t request;

	energy_request_begin(&request, bytes, size, "decide");
	_who(&request, job, submit_uid);
	_size(&request, job);
	_conditions(&request, job);
	_options(&request, job);
	_gpu_counts(&request, job, plan);
	return energy_request_end(&request);
}
