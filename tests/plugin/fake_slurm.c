/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "fake_slurm.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job_submit_energy/slurm_memory.h"

#define MAGIC UINT64_C(0x536c75726d4d656d)

typedef struct {
	uint64_t magic;
	size_t size;
} header_t;

static int allocations_left = -1;
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[1024];
static int num_errors;

extern void fake_slurm_memory(int count)
{
	allocations_left = count;
}

static bool _has_memory(bool try)
{
	if (allocations_left < 0)
		return true;
	if (allocations_left > 0) {
		allocations_left--;
		return true;
	}
	if (!try) {
		fprintf(stderr, "slurmctld would have stopped: no memory and not `try`\n");
		abort();
	}
	return false;
}

static header_t *_header(const void *pointer)
{
	header_t *header = (header_t *) pointer - 1;

	if (header->magic != MAGIC) {
		fprintf(stderr, "%p is not Slurm's memory\n", pointer);
		abort();
	}
	return header;
}

extern bool fake_slurm_owns(const void *pointer)
{
	return pointer && _header(pointer);
}

extern void *slurm_xcalloc(size_t count, size_t size, bool clear, bool try, const char *file,
			   int line, const char *function)
{
	header_t *header;

	(void) file;
	(void) line;
	(void) function;
	if (!count || !size || !_has_memory(try))
		return NULL;
	header = calloc(1, sizeof(*header) + count * size);
	header->magic = MAGIC;
	header->size = count * size;
	if (!clear)
		memset(header + 1, 0xa5, header->size);
	return header + 1;
}

extern void *slurm_xrecalloc(void **item, size_t count, size_t size, bool clear, bool try,
			     const char *file, int line, const char *function)
{
	header_t *header;
	void *grown = slurm_xcalloc(count, size, clear, try, file, line, function);

	if (!grown)
		return NULL;
	if (*item) {
		header = _header(*item);
		memcpy(grown, *item, header->size < count * size ? header->size : count * size);
		slurm_xfree(item);
	}
	*item = grown;
	return grown;
}

extern void slurm_xfree(void **item)
{
	header_t *header;

	if (!*item)
		return;
	header = _header(*item);
	header->magic = 0;
	free(header);
	*item = NULL;
}

extern char *fake_slurm_string(const char *text)
{
	size_t size = strlen(text) + 1;

	return memcpy(slurm_xcalloc(size, 1, true, false, NULL, 0, NULL), text, size);
}

extern void slurm_error(const char *format, ...)
{
	va_list arguments;

	pthread_mutex_lock(&error_lock);
	va_start(arguments, format);
	vsnprintf(last_error, sizeof(last_error), format, arguments);
	va_end(arguments);
	num_errors++;
	pthread_mutex_unlock(&error_lock);
}

extern void slurm_info(const char *format, ...)
{
	(void) format;
}

extern const char *fake_slurm_last_error(void)
{
	return last_error;
}

extern int fake_slurm_num_errors(void)
{
	return num_errors;
}

extern void fake_slurm_empty_job(job_desc_msg_t *job)
{
	memset(job, 0, sizeof(*job));
	job->user_id = job->group_id = job->het_job_offset = NO_VAL;
	job->time_limit = job->time_min = job->priority = NO_VAL;
	job->min_nodes = job->max_nodes = job->num_tasks = NO_VAL;
	job->min_cpus = job->max_cpus = NO_VAL;
	job->ntasks_per_node = job->cpus_per_task = job->ntasks_per_tres = NO_VAL16;
	job->shared = job->requeue = job->contiguous = NO_VAL16;
	job->core_spec = job->cpu_bind_type = NO_VAL16;
	job->boards_per_node = job->sockets_per_board = job->sockets_per_node = NO_VAL16;
	job->cores_per_socket = job->threads_per_core = job->pn_min_cpus = NO_VAL16;
	job->ntasks_per_board = job->ntasks_per_socket = job->ntasks_per_core = NO_VAL16;
	job->pn_min_tmp_disk = job->req_switch = NO_VAL;
	job->pn_min_memory = NO_VAL64;
}

extern void fake_slurm_add_entry(job_desc_msg_t *job, const char *entry)
{
	slurm_xrecalloc((void **) &job->spank_job_env, job->spank_job_env_size + 1, sizeof(char *),
			true, false, NULL, 0, NULL);
	job->spank_job_env[job->spank_job_env_size++] = fake_slurm_string(entry);
}

extern void fake_slurm_free_job(job_desc_msg_t *job)
{
	char **texts[] = {
		&job->admin_comment, &job->partition, &job->name, &job->account, &job->qos,
		&job->array_inx, &job->dependency, &job->features, &job->prefer, &job->tres_per_node,
		&job->tres_per_job, &job->script,
	};

	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		slurm_xfree((void **) &job->spank_job_env[i]);
	slurm_xfree((void **) &job->spank_job_env);
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		slurm_xfree((void **) texts[i]);
	for (uint32_t i = 0; job->environment && (i < job->env_size); i++)
		slurm_xfree((void **) &job->environment[i]);
	slurm_xfree((void **) &job->environment);
}

static spank_context_t context = S_CTX_ALLOCATOR;
static struct spank_option *registered[256];
static size_t num_registered;
static char entries[1024];

extern void fake_spank_context(spank_context_t now)
{
	context = now;
}

extern spank_context_t spank_context(void)
{
	return context;
}

extern spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void) spank;
	registered[num_registered++] = option;
	return ESPANK_SUCCESS;
}

extern struct spank_option *fake_spank_option(const char *name)
{
	for (size_t i = 0; i < num_registered; i++) {
		if (!strcmp(registered[i]->name, name))
			return registered[i];
	}
	return NULL;
}

extern spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value,
					    int overwrite)
{
	size_t used = strlen(entries);

	(void) spank;
	(void) overwrite;
	snprintf(entries + used, sizeof(entries) - used, "%s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

static char variables[16][2][64];
static size_t num_variables;
static uint32_t step_id;

extern void fake_spank_step(uint32_t step)
{
	step_id = step;
	num_variables = 0;
}

static char *_variable(const char *name)
{
	for (size_t i = 0; i < num_variables; i++) {
		if (!strcmp(variables[i][0], name))
			return variables[i][1];
	}
	return NULL;
}

extern const char *fake_spank_variable(const char *name)
{
	return _variable(name);
}

extern spank_err_t spank_getenv(spank_t spank, const char *name, char *text, int size)
{
	const char *found = _variable(name);

	(void) spank;
	if (!found)
		return ESPANK_ENV_NOEXIST;
	snprintf(text, (size_t) size, "%s", found);
	return (strlen(found) < (size_t) size) ? ESPANK_SUCCESS : ESPANK_NOSPACE;
}

extern spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	char *place = _variable(name);

	(void) spank;
	(void) overwrite;
	if (!place) {
		place = variables[num_variables][1];
		snprintf(variables[num_variables++][0], sizeof(variables[0][0]), "%s", name);
	}
	snprintf(place, sizeof(variables[0][1]), "%s", value);
	return ESPANK_SUCCESS;
}

extern spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;

	(void) spank;
	if (item != S_JOB_STEPID)
		return ESPANK_BAD_ARG;
	va_start(arguments, item);
	*va_arg(arguments, uint32_t *) = step_id;
	va_end(arguments);
	return ESPANK_SUCCESS;
}

extern const char *fake_spank_entries(void)
{
	return entries;
}

extern void fake_spank_forget(void)
{
	entries[0] = '\0';
}
