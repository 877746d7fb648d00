/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which numbers of GPUs a job could be given, by the form in which it asks for its own.
 *
 * Nodes follow the GPUs where their number is given: full nodes stay full nodes, and what is less than one node goes
 * on one. Tasks follow where there are as many for each GPU, or one for each node.
 */
#include <slurm/slurm.h>
#include <string.h>

#include "gpu_count.h"
#include "job.h"
#include "partition_order.h"

/* What the job says of its size, where it is known. */
typedef struct {
	uint32_t asked;
	uint32_t nodes;		/* 0: Slurm chooses */
	bool names_nodes;
	uint32_t per_node;	/* GPUs on each, 0: not known */
	uint32_t tasks;		/* at least 1 */
	bool names_tasks;
	uint32_t tasks_per_gpu, tasks_per_node;	/* what tasks follow: one of them, 0 for the other */
	uint32_t cpus_per_task;
} form_t;

static uint16_t _cpus_of_task(const job_desc_msg_t *job)
{
	return energy_is_given16(job->cpus_per_task) ? job->cpus_per_task : 1;
}

static bool _is_kind_of(const job_desc_msg_t *job, const char **refusal)
{
	const struct {
		bool is_so;
		const char *why;
	} kinds[] = {
		{ job->het_job_offset != NO_VAL, "it is a part of a heterogeneous job" },
		{ !job->script, "only batch jobs change their number of GPUs" },
		{ job->shared == JOB_SHARED_NONE, "it takes whole nodes (--exclusive)" },
		{ energy_is_set(job->req_nodes), "it names its nodes (--nodelist)" },
		{ energy_is_set(job->reservation), "it runs in a reservation" },
		{ energy_is_set(job->tres_per_socket), "it asks for GPUs by socket" },
		{ energy_is_given32(job->req_switch), "it limits its switches" },
		{ energy_is_given32(job->time_min), "it gives a least time (--time-min)" },
		{ job->deadline && (job->deadline != (time_t) NO_VAL), "it has a deadline of Slurm (--deadline)" },
		{ job->tres_bind && (strstr(job->tres_bind, "map_gpu") || strstr(job->tres_bind, "mask_gpu")),
		  "it binds tasks to GPUs by number" },
		{ energy_is_given16(job->ntasks_per_board) || energy_is_given16(job->ntasks_per_socket) ||
			  energy_is_given16(job->ntasks_per_core) || energy_is_given16(job->plane_size),
		  "it places tasks by board, socket, core or plane" },
		{ energy_is_given16(job->boards_per_node) || energy_is_given16(job->sockets_per_board) ||
			  energy_is_given16(job->sockets_per_node) || energy_is_given16(job->cores_per_socket),
		  "it asks for sockets or cores of a node" },
		{ energy_is_given16(job->threads_per_core) || (energy_is_given16(job->cpu_bind_type) &&
			(job->cpu_bind_type & CPU_BIND_ONE_THREAD_PER_CORE)),
		  "it limits the threads of a core (--threads-per-core or --hint)" },
		{ job->core_spec != NO_VAL16, "it sets cores or threads aside (--core-spec or --thread-spec)" },
		{ job->contiguous == 1, "it asks for nodes side by side (--contiguous)" },
		/* sbatch itself states the CPUs of one task here. */
		{ energy_is_given16(job->pn_min_cpus) && (job->pn_min_cpus > _cpus_of_task(job)),
		  "it asks for CPUs of a node (--mincpus)" },
		{ energy_is_set(job->clusters) || energy_is_set(job->burst_buffer),
		  "it names clusters or a burst buffer" },
		{ job->overcommit && (job->overcommit != NO_VAL8), "it shares CPUs among tasks (--overcommit)" },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (kinds[i].is_so) {
			*refusal = kinds[i].why;
			return false;
		}
	}
	return true;
}

/* Read nodes and tasks as far as the job names them. */
static const char *_read_size(const job_desc_msg_t *job, form_t *form)
{
	form->names_nodes = energy_is_given32(job->min_nodes);
	if (form->names_nodes && energy_is_given32(job->max_nodes) && (job->max_nodes != job->min_nodes))
		return "it gives a range of nodes";
	form->names_tasks = energy_is_given32(job->num_tasks);
	form->tasks = form->names_tasks ? job->num_tasks : (form->names_nodes ? job->min_nodes : 1);
	/* One task is on one node whatever Slurm chooses. */
	form->nodes = form->names_nodes ? job->min_nodes : (form->tasks == 1) ? 1 : 0;
	form->cpus_per_task = _cpus_of_task(job);
	return NULL;
}

/* Read how many GPUs the job asks for in all, whatever the option. */
static const char *_read_gpus(const job_desc_msg_t *job, form_t *form)
{
	energy_gpu_digits_t per_job = { 0 }, per_node = { 0 }, per_task = { 0 };
	bool by_tasks = energy_is_given16(job->ntasks_per_tres);

	if (energy_is_set(job->tres_per_job) && !energy_gpu_digits(job->tres_per_job, &per_job))
		return "its GPUs are of several types, or not a plain number";
	if (energy_is_set(job->tres_per_node) && !energy_gpu_digits(job->tres_per_node, &per_node))
		return "its GPUs are of several types, or not a plain number";
	if (energy_is_set(job->tres_per_task) && !energy_gpu_digits(job->tres_per_task, &per_task))
		return "its GPUs are of several types, or not a plain number";
	if (per_task.value && !form->names_tasks)
		return "it asks for GPUs by task without a number of tasks";
	/* Beside --gpus, one option may speak of nodes and none of tasks: more is the user's own puzzle. */
	if (per_task.value && (per_node.value || per_job.value))
		return "it counts its GPUs in several ways";
	/* Slurm then derives the nodes from both, and one of them would no longer divide the other. */
	if (per_job.value && per_node.value && !form->nodes)
		return "its number of nodes is open";
	form->per_node = per_node.value;
	if (per_job.value)
		form->asked = per_job.value;
	else if (per_node.value && form->nodes)
		form->asked = per_node.value * form->nodes;
	else if (per_node.value)
		return "its number of nodes is open";
	else if (per_task.value)
		form->asked = per_task.value * form->tasks;
	else if (by_tasks && form->names_tasks)
		form->asked = form->tasks / job->ntasks_per_tres;
	if (!form->asked)
		return "it asks for no number of GPUs";
	if (per_node.value && form->nodes && (form->asked != per_node.value * form->nodes))
		return "its GPUs are not the same on each node";
	if (!form->per_node && form->nodes) {
		if (form->asked % form->nodes)
			return "its GPUs are not the same on each node";
		form->per_node = form->asked / form->nodes;
	}
	return NULL;
}

/* Find what the number of tasks follows. */
static const char *_read_tasks(const job_desc_msg_t *job, form_t *form)
{
	uint32_t per_node = energy_is_given16(job->ntasks_per_node) ? job->ntasks_per_node : 0;
	bool is_by_gpu = energy_is_given16(job->ntasks_per_tres) || energy_is_set(job->tres_per_task);

	if (per_node && form->nodes && (form->tasks != form->nodes * per_node))
		return "its tasks are not the same on each node";
	if (energy_is_set(job->tres_per_task)) {
		form->tasks_per_gpu = 0;	/* fewer tasks than GPUs: counted from the GPUs of a task */
		return NULL;
	}
	/* One task for one GPU: whether there is to be one for each GPU is not said. */
	if (!is_by_gpu && form->names_tasks && (form->tasks == 1) && (form->asked == 1))
		return "one task for one GPU does not say what tasks follow: give --ntasks-per-gpu or no --ntasks";
	if (!is_by_gpu && form->nodes && (form->tasks == form->nodes)) {
		form->tasks_per_node = 1;
		return NULL;
	}
	if (form->tasks % form->asked)
		return "its tasks are no multiple of its GPUs";
	form->tasks_per_gpu = form->tasks / form->asked;
	return NULL;
}

static bool _nodes_of(const form_t *form, energy_gpu_option_t *option)
{
	option->nodes = form->nodes;
	option->gpus_per_node = form->nodes ? option->gpus : 0;
	if (form->nodes <= 1)
		return true;
	if (option->gpus < form->per_node) {
		option->nodes = 1;
		return true;
	}
	option->nodes = option->gpus / form->per_node;
	option->gpus_per_node = form->per_node;
	return option->gpus % form->per_node == 0;
}

static bool _tasks_of(const job_desc_msg_t *job, const form_t *form, energy_gpu_option_t *option)
{
	energy_gpu_digits_t per_task = { 0 };

	if (energy_is_set(job->tres_per_task)) {
		(void) energy_gpu_digits(job->tres_per_task, &per_task);
		if (option->gpus % per_task.value)
			return false;
		option->tasks = option->gpus / per_task.value;
	} else if (form->tasks_per_node) {
		option->tasks = option->nodes;
	} else {
		option->tasks = option->gpus * form->tasks_per_gpu;
	}
	if (energy_is_given16(job->ntasks_per_node)) {
		option->tasks_per_node = job->ntasks_per_node;
		if (option->nodes) {
			if (option->tasks % option->nodes)
				return false;
			option->tasks_per_node = option->tasks / option->nodes;
		} else if (option->tasks_per_node > option->tasks) {
			option->tasks_per_node = option->tasks;
		}
	}
	return option->tasks && (option->tasks_per_node < NO_VAL16);
}

/*
 * sbatch states a number of CPUs for each task it knew of, and it knew of one for each node, or of one alone, where it
 * only learned the others from the GPUs. Any other number is the user's.
 */
static bool _cpus_of(const job_desc_msg_t *job, const form_t *form, energy_gpu_option_t *option)
{
	uint32_t cpus = form->cpus_per_task;

	option->min_cpus = job->min_cpus;
	if (!energy_is_given32(job->min_cpus))
		return true;
	if (job->min_cpus == form->tasks * cpus)
		option->min_cpus = option->tasks * cpus;
	else if (form->nodes && (job->min_cpus == form->nodes * cpus))
		option->min_cpus = option->nodes * cpus;
	else
		return job->min_cpus == cpus;
	return true;
}

/* More GPUs on a node need more of its memory; fewer may need all of it still. */
static bool _memory_of(const job_desc_msg_t *job, const form_t *form, energy_gpu_option_t *option)
{
	uint64_t memory = job->pn_min_memory;

	option->memory = memory;
	if (!memory || (memory == NO_VAL64) || (memory & MEM_PER_CPU) || (option->gpus <= form->asked) ||
	    (form->nodes > 1))
		return true;
	if (memory > UINT64_MAX / 2 / ENERGY_MAX_COUNT)
		return false;
	option->memory = (memory * option->gpus + form->asked - 1) / form->asked;
	return true;
}

/*
 * What the nodes must have. min_cpus may be of one task alone where sbatch learned the tasks from the GPUs; a share of
 * each GPU that cannot be read stands against more of them (gpu_limits.c).
 */
static bool _needs_of(const job_desc_msg_t *job, const form_t *form, energy_gpu_option_t *option)
{
	uint64_t nodes = option->nodes ? option->nodes : 1;
	uint64_t memory = ((option->memory == NO_VAL64) || (option->memory & MEM_PER_CPU)) ? 0 : option->memory;
	uint64_t tasks = option->tasks, cpus, by_gpu;

	if (energy_is_given16(job->ntasks_per_tres) && ((uint64_t) option->gpus * job->ntasks_per_tres > tasks))
		tasks = (uint64_t) option->gpus * job->ntasks_per_tres;
	cpus = tasks * form->cpus_per_task;
	if (energy_is_given32(option->min_cpus) && (option->min_cpus > cpus))
		cpus = option->min_cpus;
	if (energy_is_set(job->cpus_per_tres)) {
		by_gpu = (uint64_t) option->gpus * energy_gpu_share(job->cpus_per_tres);
		cpus = (by_gpu > cpus) ? by_gpu : cpus;
	}
	if (energy_is_set(job->mem_per_tres)) {
		by_gpu = (option->gpus + nodes - 1) / nodes * energy_gpu_share(job->mem_per_tres);
		memory = (by_gpu > memory) ? by_gpu : memory;
	}
	option->cpus = (uint32_t) cpus;
	option->node_memory = memory;
	return cpus < NO_VAL - 1;
}

/* Fewer GPUs get the time that the same work takes if it scales without loss, more keep theirs. */
static bool _time_of(const job_desc_msg_t *job, const form_t *form, uint32_t default_time,
		     energy_gpu_option_t *option)
{
	uint64_t minutes = job->time_limit;

	option->time_limit = job->time_limit;
	if ((option->gpus >= form->asked) || (job->time_limit == INFINITE))
		return true;
	if (job->time_limit == NO_VAL) {
		if (default_time == INFINITE)
			return true;
		if (default_time == NO_VAL)
			return false;
		minutes = default_time;
	}
	minutes = (minutes * form->asked + option->gpus - 1) / option->gpus;
	if (minutes >= NO_VAL - 1)
		return false;
	option->time_limit = (uint32_t) minutes;
	return true;
}

static const char *_read_form(const job_desc_msg_t *job, form_t *form)
{
	const char *refusal = NULL;

	if (!_is_kind_of(job, &refusal))
		return refusal;
	if ((refusal = _read_size(job, form)) || (refusal = _read_gpus(job, form)))
		return refusal;
	return _read_tasks(job, form);
}

static bool _option_of(const job_desc_msg_t *job, const form_t *form, uint32_t default_time,
		       energy_gpu_option_t *option)
{
	return _nodes_of(form, option) && _tasks_of(job, form, option) && _cpus_of(job, form, option) &&
	       _memory_of(job, form, option) && _needs_of(job, form, option) &&
	       _time_of(job, form, default_time, option);
}

extern const energy_gpu_option_t *energy_gpu_option(const energy_gpu_plan_t *plan, uint32_t gpus)
{
	for (size_t i = 0; i < plan->count; i++) {
		if (plan->options[i].gpus == gpus)
			return &plan->options[i];
	}
	return NULL;
}

static void _refuse(energy_gpu_plan_t *plan, const char *why)
{
	plan->count = 0;
	plan->refusal = why;
}

extern void energy_gpu_plan(const job_desc_msg_t *job, uint32_t submit_uid, energy_gpu_plan_t *plan)
{
	const char *declared = energy_job_entry(job, ENERGY_ENTRY_GPUS), *objection = NULL;
	form_t form = { 0 };
	energy_counts_t counts;
	uint32_t default_time;

	memset(plan, 0, sizeof(*plan));
	/* The user may have set the entry by hand, past the option's own check. */
	if (!declared || !energy_counts_read(declared, &counts))
		return;
	plan->is_declared = true;
	plan->refusal = _read_form(job, &form);
	if (plan->refusal)
		return;
	plan->asked = form.asked;
	if (!energy_counts_has(&counts, form.asked)) {
		_refuse(plan, "its own number of GPUs is not among those of --energy-gpus");
		return;
	}
	if (energy_script_has_counts(job->script)) {
		_refuse(plan, "its script starts a program with a number of tasks, nodes or GPUs written out");
		return;
	}
	default_time = energy_gpu_default_time(job);
	for (size_t i = 0; i < counts.count; i++) {
		energy_gpu_option_t option = { .gpus = counts.values[i] };
		const char *against = NULL;

		if (!_option_of(job, &form, default_time, &option)) {
			if (option.gpus == form.asked) {
				_refuse(plan, "its numbers of nodes, tasks and CPUs do not follow its GPUs");
				return;
			}
			continue;
		}
		if (option.gpus != form.asked)
			against = energy_gpu_objection(job, submit_uid, plan, &option);
		if (against)
			objection = against;
		else
			plan->options[plan->count++] = option;
	}
	if (plan->count < 2)
		_refuse(plan, objection ? objection : "no other number of GPUs fits its nodes, tasks and time limit");
}
