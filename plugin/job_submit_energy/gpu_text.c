/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbers of GPUs in texts: in what the job asks for, and in the lines of its script. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_count.h"

#define MAX_SCRIPT_BYTES (1024 * 1024)
#define MAX_DIGITS 6
#define MAX_LINE 4096

static bool _is_word(const char *text, size_t length, const char *word)
{
	return (length == strlen(word)) && !memcmp(text, word, length);
}

/* Read one item of a list, `gres:gpu:a100:4`. False if it is GPUs without a plain number. */
static bool _read_item(const char *text, size_t at, size_t length, size_t *found, energy_gpu_digits_t *digits)
{
	const char *item = text + at;
	size_t start = 0, name, last, words = 0;
	uint32_t value = 0;

	if ((length > 5) && !memcmp(item, "gres", 4) && ((item[4] == ':') || (item[4] == '/')))
		start = 5;
	name = strcspn(item + start, ":=,");
	if (!_is_word(item + start, name, "gpu"))
		return true;
	if (start + name >= length)
		return false;
	last = start + name + 1;
	for (size_t i = last; i < length; i++) {
		if ((item[i] == ':') || (item[i] == '=')) {
			last = i + 1;
			words++;
		}
	}
	if ((words > 1) || (last >= length) || (length - last > MAX_DIGITS))
		return false;
	for (size_t i = last; i < length; i++) {
		if (!isdigit((unsigned char) item[i]))
			return false;
		value = value * 10 + (uint32_t) (item[i] - '0');
	}
	*digits = (energy_gpu_digits_t) { .at = at + last, .length = length - last, .value = value };
	(*found)++;
	return value > 0;
}

extern bool energy_gpu_digits(const char *text, energy_gpu_digits_t *digits)
{
	size_t at = 0, found = 0;

	*digits = (energy_gpu_digits_t) { 0 };
	while (true) {
		size_t length = strcspn(text + at, ",");

		if (!_read_item(text, at, length, &found, digits))
			return false;
		if (!text[at + length])
			return found == 1;
		at += length + 1;
	}
}

extern uint32_t energy_gpu_share(const char *text)
{
	size_t start = strcspn(text, "0123456789"), digits = strspn(text + start, "0123456789");

	if ((start != strlen("gres:gpu:")) || memcmp(text, "gres", 4) || memcmp(text + 5, "gpu", 3) || text[start + digits] ||
	    !digits || (digits > 9))
		return 0;
	return (uint32_t) strtoul(text + start, NULL, 10);
}

/* Whether an item of a list ends with two numbers and a dash behind its last colon: `gres:gpu:a100:2-8`. */
static bool _is_range(const char *item, size_t length)
{
	size_t last = 0, first;

	for (size_t i = 0; i < length; i++)
		last = (item[i] == ':') ? i + 1 : last;
	first = strspn(item + last, "0123456789");
	return first && (item[last + first] == '-') &&
	       (strspn(item + last + first + 1, "0123456789") == length - last - first - 1) &&
	       (last + first + 1 < length);
}

static bool _names_range(const char *text)
{
	while (text && *text) {
		size_t length = strcspn(text, ",");

		if (strstr(text, "gpu:") && _is_range(text, length))
			return true;
		text += length + (text[length] ? 1 : 0);
	}
	return false;
}

extern bool energy_gpu_is_range(const job_desc_msg_t *job)
{
	return _names_range(job->tres_per_job) || _names_range(job->tres_per_node) ||
	       _names_range(job->tres_per_task) || _names_range(job->tres_per_socket);
}

/* Programs that start others, by how they take numbers. */
static const char *const launchers[] = {
	"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "torchrun", "accelerate", "deepspeed",
	"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "horovodrun",
};

/* One node, one task, or one task on each node, is there whatever the number of GPUs. */
static const char *const counted_from_two[] = {
	"-n", "-N", "--ntasks", "--nodes", "--nnodes", "--num_machines", "--num-machines", "--num_nodes",
	"--ntasks-per-node", "--tasks-per-node", "--npernode", "-npernode", "-ppn", "-perhost",
};

static const char *const counted[] = {
	"-G", "-np", "--np", "--gpus", "--gres", "--ntasks-per-gpu", "--ntasks-per-tres", "--gpus-per-node",
	"--gpus-per-task", "--gpus-per-socket", "--nproc_per_node", "--nproc-per-node", "--num_processes",
	"--num-processes", "--num_gpus", "--map-by",
};

static bool _is_launcher(const char *word, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (word[length - 1 - i] == '/') {
			word += length - i;
			length = i;
			break;
		}
	}
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		if (_is_word(word, length, launchers[i]))
			return true;
	}
	return false;
}

/* Whether a value begins with a number, or names one behind a type: `4`, `"4"`, `gpu:4`, `ppr:4:node`. */
static bool _is_number(const char *value, size_t length)
{
	bool begins = true;

	for (size_t i = 0; i < length; i++) {
		if (begins && isdigit((unsigned char) value[i]))
			return true;
		begins = strchr("\"':=", value[i]) != NULL;
		if (value[i] == '$')
			return false;
	}
	return false;
}

static size_t _word_length(const char *text)
{
	return strcspn(text, " \t;|&()<>");
}

/* The value of an option, in its word or in the one behind it; NULL: the word is another one. */
static const char *_value(const char *option, const char *word, size_t length, const char *behind, size_t *size)
{
	size_t name = strlen(option);

	if ((length < name) || memcmp(word, option, name))
		return NULL;
	if (length == name) {
		*size = _word_length(behind);
		return behind;
	}
	if ((name != 2) && (word[name] != '='))
		return NULL;
	*size = length - name;
	return word + name;
}

static bool _is_one(const char *value, size_t length)
{
	return _is_word(value, length, "1") || _is_word(value, length, "=1");
}

/* Whether a word is one of the options with a number that is written out. */
static bool _names_count(const char *word, size_t length, const char *behind)
{
	const char *value;
	size_t size = 0;

	for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++) {
		value = _value(counted[i], word, length, behind, &size);
		if (value && _is_number(value, size))
			return true;
	}
	for (size_t i = 0; i < sizeof(counted_from_two) / sizeof(counted_from_two[0]); i++) {
		value = _value(counted_from_two[i], word, length, behind, &size);
		if (value && _is_number(value, size) && !_is_one(value, size))
			return true;
	}
	return false;
}

static bool _line_has_counts(const char *line)
{
	bool is_started = false;

	while (*line) {
		size_t length;
		const char *behind;

		line += strspn(line, " \t;|&()<>");
		if (*line == '#')
			return false;
		length = _word_length(line);
		behind = line + length + strspn(line + length, " \t");
		if (_is_launcher(line, length))
			is_started = true;
		else if (is_started && _names_count(line, length, behind))
			return true;
		if (strchr(";|&", line[length]) && line[length])
			is_started = false;
		line += length;
	}
	return false;
}

extern bool energy_script_has_counts(const char *script)
{
	char line[MAX_LINE];
	size_t used = 0;

	if (strnlen(script, MAX_SCRIPT_BYTES) == MAX_SCRIPT_BYTES)
		return true;	/* not looked at: it may have any */
	while (*script) {
		size_t length = strcspn(script, "\n");
		bool goes_on = length && (script[length - 1] == '\\');
		size_t taken = length - (goes_on ? 1 : 0);

		if (taken >= sizeof(line) - used)
			return true;
		memcpy(line + used, script, taken);
		used += taken;
		line[used] = '\0';
		script += length + (script[length] ? 1 : 0);
		if (goes_on && *script)
			continue;
		if (_line_has_counts(line))
			return true;
		used = 0;
	}
	return false;
}
