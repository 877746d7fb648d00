/*
 * simgpu-workload: what a job runs. It loads its GPUs as a process with a CUDA context does, until its work is done.
 *
 * Work, power and energy are settled in the shared state; this process only waits for the end, and is woken when a
 * clock, a limit or another load changes when that end comes.
 */
#define _GNU_SOURCE
#include "simgpu.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONGEST_WAIT_SECONDS 0.25
#define SHORTEST_WAIT_SECONDS 0.0005
#define DEFAULT_MEMORY_BYTES (8ULL << 30)
#define USAGE_EXIT 2

struct options {
	double seconds; /* at the default clock of the GPU that the job got */
	double units;
	double utilisation;
	unsigned long long memory_bytes;
	const char *profile;
	const char *gpus; /* minor numbers, when the environment does not say */
	int quiet;
	struct simgpu_rhythm rhythm;
};

struct share {
	uint32_t index;
	int slot;
	double units_per_second;
	double target_seconds;
};

struct work {
	struct simgpu_state *state;
	struct share shares[SIMGPU_MAX_GPUS];
	uint32_t count;
};

static volatile sig_atomic_t ended;
static volatile sig_atomic_t pause_wanted;

static void on_end(int signal_number)
{
	ended = signal_number;
}

static void on_pause(int signal_number)
{
	pause_wanted = signal_number == SIGTSTP;
}

static void usage(FILE *to)
{
	fprintf(to, "Usage: simgpu-workload (--seconds-at-default S | --units U) [--profile NAME] [--utilisation 0..1]\n"
		    "                       [--memory-mib M] [--gpus MINOR,MINOR] [--quiet]\n"
		    "                       [--rhythm iterations|stalling|evaluating|aperiodic|timer] [--period S]\n"
		    "                       [--jitter SHARE] [--seed N]\n"
		    "Loads the job's simulated GPUs until the work is done. S is device time at the default clock of the\n"
		    "GPU type that the job got; U counts seconds of an A100 at its default clock. Without --rhythm the power\n"
		    "stays; a period is work at the default clock, a timer's is device time.\n"
		    "Example: simgpu-workload --seconds-at-default 600 --profile training\n");
}

static int positive(const char *text, double highest, double *value)
{
	char *end;

	errno = 0;
	*value = strtod(text, &end);
	return !errno && end != text && !*end && *value >= 0.0 && *value <= highest;
}

/* Power over time as real programs make it; the work per second at a clock stays the profile's but for waits. */
static int set_rhythm(struct simgpu_rhythm *rhythm, const char *name)
{
	rhythm->high_share = 0.7;
	rhythm->low_level = 0.35;
	rhythm->kind = SIMGPU_RHYTHM_ITERATIONS;
	if (!strcmp(name, "stalling")) {
		rhythm->stall_chance = 0.02;
		rhythm->stall_seconds = 3.0;
	} else if (!strcmp(name, "evaluating")) {
		rhythm->evaluation_every = 20;
		rhythm->evaluation_seconds = 5.0;
	} else if (!strcmp(name, "aperiodic")) {
		rhythm->kind = SIMGPU_RHYTHM_APERIODIC;
	} else if (!strcmp(name, "timer")) {
		rhythm->kind = SIMGPU_RHYTHM_TIMER;
	} else if (strcmp(name, "iterations")) {
		return 0;
	}
	return 1;
}

/* Return 0, or the exit code. */
static int parse(int argc, char **argv, struct options *options)
{
	static const struct option known[] = {
		{"seconds-at-default", required_argument, NULL, 's'},
		{"units", required_argument, NULL, 'u'},
		{"profile", required_argument, NULL, 'p'},
		{"utilisation", required_argument, NULL, 'l'},
		{"memory-mib", required_argument, NULL, 'm'},
		{"gpus", required_argument, NULL, 'g'},
		{"quiet", no_argument, NULL, 'q'},
		{"rhythm", required_argument, NULL, 'r'},
		{"period", required_argument, NULL, 'e'},
		{"jitter", required_argument, NULL, 'j'},
		{"seed", required_argument, NULL, 'd'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	double mebibytes = 0.0;
	double seed = 0.0;
	int letter;

	while ((letter = getopt_long(argc, argv, "", known, NULL)) != -1) {
		int good = 1;

		switch (letter) {
		case 's':
			good = positive(optarg, 1e9, &options->seconds);
			break;
		case 'u':
			good = positive(optarg, 1e9, &options->units);
			break;
		case 'l':
			good = positive(optarg, 1.0, &options->utilisation);
			break;
		case 'm':
			good = positive(optarg, 1e7, &mebibytes);
			options->memory_bytes = (unsigned long long)(mebibytes * 1048576.0);
			break;
		case 'r':
			good = set_rhythm(&options->rhythm, optarg);
			break;
		case 'e':
			good = positive(optarg, 3600.0, &options->rhythm.period_seconds);
			break;
		case 'j':
			good = positive(optarg, 0.5, &options->rhythm.jitter);
			break;
		case 'd':
			good = positive(optarg, 4294967295.0, &seed);
			options->rhythm.seed = (uint64_t)seed;
			break;
		case 'p':
			options->profile = optarg;
			break;
		case 'g':
			options->gpus = optarg;
			break;
		case 'q':
			options->quiet = 1;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			return USAGE_EXIT;
		}
		if (!good) {
			fprintf(stderr, "simgpu-workload: %s is not a number in range, nor a rhythm\n", optarg);
			return USAGE_EXIT;
		}
	}
	if ((options->seconds > 0.0) == (options->units > 0.0) || optind != argc) {
		usage(stderr);
		return USAGE_EXIT;
	}
	return 0;
}

static int add_gpu(struct work *work, uint32_t index)
{
	uint32_t place;

	for (place = 0; place < work->count; place++)
		if (work->shares[place].index == index)
			return 0;
	work->shares[work->count].index = index;
	work->shares[work->count++].slot = -1;
	return 0;
}

/* A word is a number, the position where Slurm counts a GPU, or a UUID. Return 0, or -1 if there is no such GPU. */
static int add_word(struct work *work, const char *word)
{
	struct simgpu_state *state = work->state;
	char *end;
	unsigned long position = strtoul(word, &end, 10);
	int is_number = end != word && !*end;
	uint32_t index;

	for (index = 0; index < state->gpu_count; index++) {
		const struct simgpu_gpu *gpu = &state->gpus[index];

		if (is_number ? gpu->slurm_position == position : !strcmp(gpu->uuid, word))
			return add_gpu(work, index);
	}
	return -1;
}

static int add_list(struct work *work, const char *list)
{
	char copy[4096];
	char *rest = copy;
	char *word;

	if (strlen(list) >= sizeof(copy))
		return -1;
	strcpy(copy, list);
	while ((word = strsep(&rest, ",")))
		if (*word && add_word(work, word))
			return -1;
	return work->count ? 0 : -1;
}

/* What CUDA sees comes first: a task of a step may be bound to fewer GPUs than the step holds. */
static int find_gpus(struct work *work, const struct options *options)
{
	static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"};
	size_t place;

	if (options->gpus)
		return add_list(work, options->gpus);
	for (place = 0; place < sizeof(names) / sizeof(*names); place++) {
		const char *list = getenv(names[place]);

		if (list && *list && strcmp(list, "NoDevFiles"))
			return add_list(work, list);
	}
	return -1;
}

static const struct simgpu_profile *find_profile(const struct simgpu_gpu *gpu, const char *name)
{
	uint32_t place;

	for (place = 0; place < gpu->profile_count && place < SIMGPU_MAX_PROFILES; place++)
		if (!strncmp(gpu->profiles[place].name, name, SIMGPU_PROFILE_NAME_BYTES))
			return &gpu->profiles[place];
	return NULL;
}

static int start(struct work *work, const struct options *options)
{
	uint32_t place;

	for (place = 0; place < work->count; place++) {
		struct share *share = &work->shares[place];
		const struct simgpu_gpu *gpu = &work->state->gpus[share->index];
		const struct simgpu_profile *profile = find_profile(gpu, options->profile);
		struct simgpu_load load = {.pid = getpid(),
					   .utilisation = options->utilisation,
					   .memory_bytes = options->memory_bytes};

		if (!profile) {
			fprintf(stderr, "simgpu-workload: %s has no profile %s\n", gpu->name, options->profile);
			return 1;
		}
		share->units_per_second = profile->units_per_second;
		share->target_seconds = options->seconds > 0.0 ? options->seconds
							       : options->units / profile->units_per_second;
		load.target_seconds = share->target_seconds;
		load.curve = profile->curve;
		load.rhythm = options->rhythm;
		if (simgpu_lock(work->state))
			return 1;
		share->slot = simgpu_load_add(work->state, share->index, &load);
		simgpu_unlock(work->state);
		if (share->slot < 0) {
			fprintf(stderr, "simgpu-workload: %s has %d loads already, or a period under 0.01 s\n", gpu->uuid,
				SIMGPU_MAX_LOADS);
			return 1;
		}
	}
	return 0;
}

/* Device seconds until the slowest GPU is done at the present speeds; 0 when all are. */
static double device_seconds_left(struct work *work)
{
	double longest = 0.0;
	uint32_t place;

	for (place = 0; place < work->count; place++) {
		const struct share *share = &work->shares[place];
		struct simgpu_gpu *gpu = &work->state->gpus[share->index];
		struct simgpu_operating_point point;
		double left;

		simgpu_settle(work->state, share->index);
		left = share->target_seconds - simgpu_account(gpu)->done_seconds[share->slot];
		if (left <= 0.0 || !gpu->loads[share->slot].in_use)
			continue;
		simgpu_evaluate(gpu, &point);
		longest = fmax(longest, left / simgpu_load_speed(gpu, share->slot, &point));
	}
	return longest;
}

static void apply_pause(struct work *work, uint32_t *paused)
{
	uint32_t wanted = pause_wanted ? 1 : 0;
	uint32_t place;

	if (wanted == *paused)
		return;
	for (place = 0; place < work->count; place++)
		simgpu_load_pause(work->state, work->shares[place].index, work->shares[place].slot, wanted);
	*paused = wanted;
}

static void wait_for_end(struct work *work)
{
	double scale = work->state->time_scale;
	uint32_t paused = 0;

	while (!ended) {
		uint32_t generation;
		double left;

		if (simgpu_lock(work->state))
			continue;
		apply_pause(work, &paused);
		left = device_seconds_left(work);
		generation = work->state->generation;
		simgpu_unlock(work->state);
		if (left <= 0.0)
			return;
		left = scale > 0.0 ? fmin(left / scale, LONGEST_WAIT_SECONDS) : LONGEST_WAIT_SECONDS;
		simgpu_wait_change(work->state, generation, fmax(left, SHORTEST_WAIT_SECONDS));
	}
}

/* Free the GPUs and return the work that was done, in seconds at the default clock, on the slowest of them. */
static double stop(struct work *work, double *units)
{
	double least = INFINITY;
	uint32_t place;

	*units = 0.0;
	if (simgpu_lock(work->state))
		return 0.0;
	for (place = 0; place < work->count; place++) {
		struct share *share = &work->shares[place];
		double done;

		if (share->slot < 0)
			continue;
		simgpu_load_remove(work->state, share->index, share->slot);
		done = simgpu_account(&work->state->gpus[share->index])->done_seconds[share->slot];
		least = fmin(least, done);
		*units += done * share->units_per_second;
	}
	simgpu_unlock(work->state);
	return isfinite(least) ? least : 0.0;
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_handler = on_end};

	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	action.sa_handler = on_pause; /* Slurm sends SIGTSTP before it stops a job, and SIGCONT after */
	sigaction(SIGTSTP, &action, NULL);
	sigaction(SIGCONT, &action, NULL);
}

static int run(struct work *work, const struct options *options)
{
	double began = simgpu_monotonic_seconds();
	double device_began = simgpu_device_seconds(work->state);
	double done, units, wall, device;
	int rc = start(work, options);

	if (!rc)
		wait_for_end(work);
	done = stop(work, &units);
	wall = simgpu_monotonic_seconds() - began;
	device = simgpu_device_seconds(work->state) - device_began;
	if (!rc && !options->quiet)
		printf("state=%s gpus=%u units=%.3f work_seconds=%.3f device_seconds=%.3f wall_seconds=%.3f\n",
		       ended ? "stopped" : "done", work->count, units, done, device, wall);
	return rc ? rc : ended ? 128 + (int)ended : 0;
}

int main(int argc, char **argv)
{
	struct options options = {.utilisation = 1.0, .profile = "training", .memory_bytes = DEFAULT_MEMORY_BYTES,
				  .rhythm = {.period_seconds = 1.0, .jitter = 0.03}};
	struct work work = {0};
	char own_file[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", own_file, sizeof(own_file) - 1);
	int rc = parse(argc, argv, &options);

	if (rc)
		return rc;
	own_file[length > 0 ? length : 0] = '\0';
	rc = simgpu_attach_node(own_file, &work.state);
	if (rc) {
		fprintf(stderr, "simgpu-workload: no simulated GPUs on node %s: %s\n",
			getenv("SLURMD_NODENAME") ? getenv("SLURMD_NODENAME") : "(SLURMD_NODENAME is not set)",
			strerror(rc));
		return 1;
	}
	if (find_gpus(&work, &options)) {
		fprintf(stderr, "simgpu-workload: CUDA_VISIBLE_DEVICES, SLURM_STEP_GPUS and SLURM_JOB_GPUS name no GPU "
				"of this node\n");
		return 1;
	}
	catch_signals();
	return run(&work, &options);
}
