/* The mapped file: find it, map it, lock it, wait for changes. */
#define _GNU_SOURCE
#include "simgpu.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOCK_PATIENCE_SECONDS 2

int simgpu_initialise(struct simgpu_state *state)
{
	pthread_mutexattr_t attributes;
	int rc;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	rc = pthread_mutex_init(&state->lock.mutex, &attributes);
	pthread_mutexattr_destroy(&attributes);
	if (rc)
		return rc;
	state->version = SIMGPU_VERSION;
	state->size_bytes = sizeof(*state);
	state->start_monotonic_seconds = simgpu_monotonic_seconds();
	state->magic = SIMGPU_MAGIC;
	return 0;
}

static int usable(const struct simgpu_state *state)
{
	return state->magic == SIMGPU_MAGIC && state->version == SIMGPU_VERSION &&
	       state->size_bytes == sizeof(*state) && state->gpu_count <= SIMGPU_MAX_GPUS;
}

int simgpu_attach(const char *path, struct simgpu_state **state)
{
	struct stat status;
	void *map;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		return errno;
	if (fstat(fd, &status) || status.st_size < (off_t)sizeof(struct simgpu_state)) {
		close(fd);
		return EINVAL;
	}
	map = mmap(NULL, sizeof(struct simgpu_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return errno;
	if (!usable(map)) {
		munmap(map, sizeof(struct simgpu_state));
		return EINVAL;
	}
	*state = map;
	return 0;
}

/* $SLURM_ENERGY_SIM_GPU_STATE; or NODE.state in $SLURM_ENERGY_SIM_GPU_DIR, or in ../gpus beside our own file. */
int simgpu_attach_node(const char *own_file, struct simgpu_state **state)
{
	const char *whole = getenv("SLURM_ENERGY_SIM_GPU_STATE");
	const char *folder = getenv("SLURM_ENERGY_SIM_GPU_DIR");
	const char *node = getenv("SLURMD_NODENAME");
	const char *slash;
	char path[PATH_MAX];
	int length;

	if (whole && *whole)
		return simgpu_attach(whole, state);
	if (!node || !*node || strchr(node, '/'))
		return ENOENT;
	if (folder && *folder) {
		length = snprintf(path, sizeof(path), "%s/%s.state", folder, node);
	} else {
		slash = own_file ? strrchr(own_file, '/') : NULL;
		if (!slash)
			return ENOENT;
		length = snprintf(path, sizeof(path), "%.*s/../gpus/%s.state", (int)(slash - own_file), own_file,
				  node);
	}
	if (length < 0 || (size_t)length >= sizeof(path))
		return ENAMETOOLONG;
	return simgpu_attach(path, state);
}

void simgpu_detach(struct simgpu_state *state)
{
	if (state)
		munmap(state, sizeof(*state));
}

/* A holder that was killed passes the lock on; one that was stopped makes others give up after a while. */
int simgpu_lock(struct simgpu_state *state)
{
	struct timespec until;
	int rc = pthread_mutex_trylock(&state->lock.mutex);

	if (rc == EBUSY) {
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += LOCK_PATIENCE_SECONDS;
		rc = pthread_mutex_timedlock(&state->lock.mutex, &until);
	}
	if (rc == EOWNERDEAD)
		rc = pthread_mutex_consistent(&state->lock.mutex);
	return rc;
}

void simgpu_unlock(struct simgpu_state *state)
{
	pthread_mutex_unlock(&state->lock.mutex);
}

void simgpu_changed(struct simgpu_state *state)
{
	__atomic_add_fetch(&state->generation, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &state->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void simgpu_wait_change(struct simgpu_state *state, uint32_t generation, double wall_seconds)
{
	struct timespec patience;

	patience.tv_sec = (time_t)wall_seconds;
	patience.tv_nsec = (long)((wall_seconds - (double)patience.tv_sec) * 1e9);
	syscall(SYS_futex, &state->generation, FUTEX_WAIT, generation, &patience, NULL, 0);
}

double simgpu_monotonic_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double simgpu_device_seconds(const struct simgpu_state *state)
{
	if (state->time_scale <= 0.0)
		return state->manual_seconds;
	return (simgpu_monotonic_seconds() - state->start_monotonic_seconds) * state->time_scale;
}
