/*
 * State of one node's simulated GPUs, in one file that every process maps: hooks, jobs and tests.
 *
 * layout.py mirrors these structures; simgpu_layout_json() tells sizes and offsets, and both a test and every
 * process that uses the mirror compare them. Change a structure: raise SIMGPU_VERSION and follow in layout.py.
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define SIMGPU_MAGIC 0x5550474d49533031ULL /* "10SIMGPU" as the bytes lie */
#define SIMGPU_VERSION 3
#define SIMGPU_MAX_GPUS 16
#define SIMGPU_MAX_LOADS 16
#define SIMGPU_MAX_PROFILES 16
#define SIMGPU_MAX_CLOCKS 256
#define SIMGPU_MAX_MEMORY_CLOCKS 4
#define SIMGPU_NAME_BYTES 96
#define SIMGPU_PROFILE_NAME_BYTES 32
#define SIMGPU_CALL_KINDS 32

/* Bits of simgpu_gpu.faults. */
enum simgpu_fault {
	SIMGPU_FAULT_ENERGY_UNSUPPORTED = 0, /* no counter: NOT_SUPPORTED */
	SIMGPU_FAULT_ENERGY_STUCK = 1,       /* the counter stays where it was when the fault began */
	SIMGPU_FAULT_ENERGY_RESET = 2,       /* the counter starts again at 0 when the fault begins */
	SIMGPU_FAULT_ENERGY_ERROR = 3,       /* UNKNOWN */
	SIMGPU_FAULT_ENERGY_BLOCKS = 4,      /* the call takes block_seconds of wall time */
	SIMGPU_FAULT_POWER_UNSUPPORTED = 5,  /* NOT_SUPPORTED */
	SIMGPU_FAULT_POWER_BLOCKS = 6,
	SIMGPU_FAULT_NO_PERMISSION = 7,      /* every setting call: NO_PERMISSION, also for root */
	SIMGPU_FAULT_CLOCK_IGNORED = 8,      /* SUCCESS, and nothing changes */
	SIMGPU_FAULT_CLOCK_ERROR = 9,        /* UNKNOWN */
	SIMGPU_FAULT_CLOCK_UNSUPPORTED = 10, /* NOT_SUPPORTED */
	SIMGPU_FAULT_CLOCK_BLOCKS = 11,
	SIMGPU_FAULT_RESET_FAILS_ONCE = 12,  /* UNKNOWN, then the fault is over */
	SIMGPU_FAULT_RESET_FAILS = 13,       /* UNKNOWN each time */
	SIMGPU_FAULT_LIMIT_ERROR = 14,       /* setting the power limit: UNKNOWN */
	SIMGPU_FAULT_LOST = 15,              /* every call: GPU_IS_LOST */
	SIMGPU_FAULT_MIG = 16,               /* MIG mode is on: no clocks, no utilisation */
	SIMGPU_FAULT_SYMBOL_MISSING = 17,    /* counter and locked clocks: FUNCTION_NOT_FOUND, as an old driver's library */
	SIMGPU_FAULT_COUNT = 18,
};

/* Index into simgpu_gpu.calls. */
enum simgpu_call {
	SIMGPU_CALL_HANDLE = 0,
	SIMGPU_CALL_ENERGY = 1,
	SIMGPU_CALL_POWER = 2,
	SIMGPU_CALL_CLOCK_READ = 3,
	SIMGPU_CALL_CLOCK_LOCK = 4,
	SIMGPU_CALL_CLOCK_RESET = 5,
	SIMGPU_CALL_LIMIT_SET = 6,
	SIMGPU_CALL_APPLICATION_SET = 7,
	SIMGPU_CALL_APPLICATION_RESET = 8,
	SIMGPU_CALL_MEMORY_LOCK = 9,
	SIMGPU_CALL_MEMORY_RESET = 10,
	SIMGPU_CALL_COUNT = 11,
};

/* P(f) = a f^3 + b f + c watts and T(f) = max(memory, compute / f) + fixed, with f = clock / reference_clock_mhz. */
struct simgpu_curve {
	double cubic_watts;
	double linear_watts;
	double constant_watts;
	double memory_share;
	double compute_share;
	double fixed_share;
	double reference_clock_mhz;
};

/* What a program does over time beside drawing its curve's watts. Everything follows from the work done, the device
   time and the seed, so that settling stays exact. */
enum simgpu_rhythm_kind {
	SIMGPU_RHYTHM_STEADY = 0,
	SIMGPU_RHYTHM_ITERATIONS = 1, /* high, then low power, again and again, as work goes on */
	SIMGPU_RHYTHM_APERIODIC = 2,  /* levels and lengths at random */
	SIMGPU_RHYTHM_TIMER = 3,      /* steady work; device time alone makes the low power */
	SIMGPU_RHYTHM_COUNT = 4,
};

struct simgpu_rhythm {
	uint32_t kind;
	uint32_t evaluation_every; /* iterations; 0: never */
	uint64_t seed;
	double period_seconds; /* of work at the default clock; of device time for a timer */
	double high_share;     /* of the period */
	double low_level;      /* share of the load's watts */
	double jitter;         /* standard deviation of an iteration's length over its mean */
	double stall_chance;   /* that an iteration ends with a wait */
	double stall_seconds;  /* whatever the clock */
	double evaluation_seconds; /* at the default clock */
};

struct simgpu_profile {
	char name[SIMGPU_PROFILE_NAME_BYTES];
	double units_per_second; /* at the default clock, per device second */
	struct simgpu_curve curve;
};

/* One process' context on a GPU. Work is counted in device seconds as the GPU runs it alone, when no caller sets it. */
struct simgpu_load {
	uint32_t in_use;
	uint32_t paused;
	int32_t pid;
	uint32_t default_clock_mhz; /* the library's: the clock at which the board holds its default limit */
	uint64_t pid_start;     /* field 22 of /proc/PID/stat: a number used again is another process */
	uint64_t pid_namespace; /* inode; a reader in another namespace does not judge whether the process lives */
	double utilisation;
	double target_seconds; /* 0: draws power until it is removed */
	uint64_t memory_bytes;
	struct simgpu_curve curve;
	struct simgpu_rhythm rhythm;
};

/* All that time moves, twice: a process killed while it writes one leaves the other whole. */
struct simgpu_account {
	double device_seconds;
	double energy_joules;
	double published_joules;
	double temperature_c;
	double average_watts; /* what an averaging power sensor shows */
	double done_seconds[SIMGPU_MAX_LOADS];
};

struct simgpu_gpu {
	char name[SIMGPU_NAME_BYTES];
	char uuid[SIMGPU_NAME_BYTES];
	char serial[32];
	uint32_t minor_number;
	uint32_t slurm_position; /* where the laboratory's Slurm counts it */
	uint32_t pci_domain;
	uint32_t pci_bus;
	uint32_t pci_device;
	uint32_t pci_device_id;
	uint32_t architecture;
	int32_t compute_major;
	int32_t compute_minor;
	uint32_t mig_capable;
	uint32_t memory_lock_capable;
	uint64_t memory_bytes;

	uint32_t clock_count;
	uint32_t memory_clock_count;
	uint32_t clocks_mhz[SIMGPU_MAX_CLOCKS]; /* ascending */
	uint32_t memory_clocks_mhz[SIMGPU_MAX_MEMORY_CLOCKS]; /* descending */
	uint32_t idle_clock_mhz;

	uint32_t locked_low_mhz; /* 0 and 0: not locked */
	uint32_t locked_high_mhz;
	uint32_t application_clock_mhz; /* 0: not set */
	uint32_t power_limit_milliwatts;
	uint32_t default_limit_milliwatts;
	uint32_t min_limit_milliwatts;
	uint32_t max_limit_milliwatts;
	uint32_t site_locked_low_mhz; /* what the site had set before any job */
	uint32_t site_locked_high_mhz;
	uint32_t site_limit_milliwatts;
	uint32_t persistence;

	double idle_watts;         /* no context */
	double idle_context_watts; /* a context that does nothing */
	double capping_floor_watts; /* lower limits do not hold */
	double holding_share;       /* what the board makes of its limit: 0.98 holds 2 % less */
	double ambient_c;
	double kelvin_per_watt;
	double thermal_seconds;

	uint64_t faults;
	double stuck_joules;
	double counter_offset_joules;
	double block_seconds;
	uint64_t calls[SIMGPU_CALL_KINDS];

	uint32_t account_current; /* which of the two accounts holds */
	uint32_t profile_count;
	struct simgpu_account account[2];
	struct simgpu_load loads[SIMGPU_MAX_LOADS];
	struct simgpu_profile profiles[SIMGPU_MAX_PROFILES];
};

struct simgpu_state {
	uint64_t magic;
	uint32_t version;
	uint32_t size_bytes;
	uint32_t gpu_count;
	uint32_t generation; /* futex: rises at every change of clocks, limits or loads */
	double time_scale;   /* device seconds per wall second; 0: device time is manual_seconds */
	double manual_seconds;
	double start_monotonic_seconds;
	double counter_interval_seconds; /* device time between two steps of the energy counter; 0: none */
	double power_averaging_seconds;  /* time constant of the power reading but the instant one; 0: none */
	char node_name[64];
	char driver_version[80];
	union {
		pthread_mutex_t mutex;
		char mutex_bytes[64];
	} lock;
	struct simgpu_gpu gpus[SIMGPU_MAX_GPUS];
};

/* What a GPU does at this moment. */
struct simgpu_operating_point {
	uint32_t sm_clock_mhz;
	uint32_t contexts;
	double watts;
	double utilisation;
	double slice; /* share of the time that each load gets: 1, or less when loads contend */
	double work_rate; /* of all loads: 1 is one load at its default clock */
};

/* state.c: return 0, or an errno. */
int simgpu_initialise(struct simgpu_state *state);
int simgpu_attach(const char *path, struct simgpu_state **state);
int simgpu_attach_node(const char *own_file, struct simgpu_state **state);
void simgpu_detach(struct simgpu_state *state);
int simgpu_lock(struct simgpu_state *state);
void simgpu_unlock(struct simgpu_state *state);
void simgpu_changed(struct simgpu_state *state);
void simgpu_wait_change(struct simgpu_state *state, uint32_t generation, double wall_seconds);
double simgpu_device_seconds(const struct simgpu_state *state);
double simgpu_monotonic_seconds(void);

/* physics.c: called with the lock held. */
struct simgpu_account *simgpu_account(struct simgpu_gpu *gpu);
void simgpu_evaluate(const struct simgpu_gpu *gpu, struct simgpu_operating_point *point);
void simgpu_settle(struct simgpu_state *state, uint32_t index);
double simgpu_load_speed(const struct simgpu_gpu *gpu, int slot, const struct simgpu_operating_point *point);
uint32_t simgpu_default_clock(const struct simgpu_gpu *gpu, const struct simgpu_load *load);
uint64_t simgpu_counter_millijoules(const struct simgpu_gpu *gpu);

/* rhythm.c */
struct simgpu_phase {
	double level; /* share of the load's watts */
	double speed; /* over the speed that the clock gives; 0: fixed_speed holds */
	double fixed_speed; /* work per device second whatever the clock */
	double work_left;   /* until the phase ends; infinite where time ends it */
	double time_left;
};
void simgpu_phase_of(const struct simgpu_rhythm *rhythm, double done_seconds, double device_seconds,
		     struct simgpu_phase *phase);
int simgpu_rhythm_usable(const struct simgpu_rhythm *rhythm);

/* load.c: called with the lock held. */
int simgpu_load_add(struct simgpu_state *state, uint32_t index, const struct simgpu_load *wanted);
void simgpu_load_remove(struct simgpu_state *state, uint32_t index, int slot);
void simgpu_load_pause(struct simgpu_state *state, uint32_t index, int slot, uint32_t paused);
void simgpu_drop_dead_loads(struct simgpu_gpu *gpu);
int simgpu_fault_set(struct simgpu_state *state, uint32_t index, uint32_t fault, uint32_t on);
void simgpu_driver_reload(struct simgpu_state *state, uint32_t index);
uint64_t simgpu_pid_namespace(void);

/* layout.c */
const char *simgpu_layout_json(void);

#endif
