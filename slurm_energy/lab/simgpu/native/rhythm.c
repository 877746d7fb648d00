/* Where a program is in its rhythm: pure functions of work done, device time and seed. */
#include "simgpu.h"

#include <math.h>

/* Work this near to a border is behind it: a step up to a border arrives, whatever the rounding. */
#define BORDER_SECONDS 1e-9
#define EVALUATION_BEGINS 0.96
#define STALL_BEGINS 0.98
#define EVALUATION_LEVEL 0.6
#define STALL_LEVEL 0.05
#define BORDER_WANDERS 0.8
#define LEAST_LENGTH 0.2

/* Uniform in 0 to 1, of (seed, number, purpose): splitmix64. */
static double uniform(uint64_t seed, uint64_t number, uint64_t purpose)
{
	uint64_t z = seed + (number * 4 + purpose + 1) * 0x9E3779B97F4A7C15ULL;

	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
	z ^= z >> 31;
	return (double)(z >> 11) * 0x1p-53;
}

/* Nearly normal, with standard deviation 1: the sum of three uniforms. */
static double bell(uint64_t seed, uint64_t number)
{
	return 2.0 * (uniform(seed, number, 0) + uniform(seed, number, 1) + uniform(seed, number, 2) - 1.5);
}

static void iteration_phase(const struct simgpu_rhythm *rhythm, double done, struct simgpu_phase *phase)
{
	double period = rhythm->period_seconds;
	double number = floor(done / period);
	uint64_t turn = (uint64_t)number;
	double at = done - number * period;
	double high = fmin(rhythm->high_share, EVALUATION_BEGINS) * period;
	double slower = fmax(1.0 + rhythm->jitter * bell(rhythm->seed, turn), LEAST_LENGTH);
	int evaluates = rhythm->evaluation_every && turn % rhythm->evaluation_every == rhythm->evaluation_every - 1;
	double width;

	phase->speed = 1.0 / slower;
	if (at < high) {
		phase->work_left = high - at;
	} else if (at < EVALUATION_BEGINS * period) {
		phase->level = rhythm->low_level;
		phase->work_left = EVALUATION_BEGINS * period - at;
	} else if (at < STALL_BEGINS * period) {
		width = (STALL_BEGINS - EVALUATION_BEGINS) * period;
		phase->level = evaluates ? EVALUATION_LEVEL : rhythm->low_level;
		if (evaluates && rhythm->evaluation_seconds > width)
			phase->speed = width / rhythm->evaluation_seconds;
		phase->work_left = STALL_BEGINS * period - at;
	} else {
		width = (1.0 - STALL_BEGINS) * period;
		phase->level = rhythm->low_level;
		if (rhythm->stall_seconds > width && uniform(rhythm->seed, turn, 3) < rhythm->stall_chance) {
			phase->level = STALL_LEVEL;
			phase->speed = 0.0;
			phase->fixed_speed = width / rhythm->stall_seconds;
		}
		phase->work_left = period - at;
	}
}

static double border(const struct simgpu_rhythm *rhythm, double number)
{
	return (number + BORDER_WANDERS * uniform(rhythm->seed, (uint64_t)number, 0)) * rhythm->period_seconds;
}

static void aperiodic_phase(const struct simgpu_rhythm *rhythm, double done, struct simgpu_phase *phase)
{
	double number = floor(done / rhythm->period_seconds);

	if (done < border(rhythm, number))
		number = fmax(number - 1.0, 0.0);
	phase->level = rhythm->low_level + (1.0 - rhythm->low_level) * uniform(rhythm->seed, (uint64_t)number, 1);
	phase->work_left = border(rhythm, number) > done ? border(rhythm, number) - done
							  : border(rhythm, number + 1.0) - done;
}

static void timer_phase(const struct simgpu_rhythm *rhythm, double now, struct simgpu_phase *phase)
{
	double at = now - floor(now / rhythm->period_seconds) * rhythm->period_seconds;
	double high = rhythm->high_share * rhythm->period_seconds;

	phase->level = at < high ? 1.0 : rhythm->low_level;
	phase->time_left = at < high ? high - at : rhythm->period_seconds - at;
}

void simgpu_phase_of(const struct simgpu_rhythm *rhythm, double done_seconds, double device_seconds,
		     struct simgpu_phase *phase)
{
	phase->level = 1.0;
	phase->speed = 1.0;
	phase->fixed_speed = 0.0;
	phase->work_left = INFINITY;
	phase->time_left = INFINITY;
	if (rhythm->kind == SIMGPU_RHYTHM_ITERATIONS)
		iteration_phase(rhythm, done_seconds + BORDER_SECONDS, phase);
	else if (rhythm->kind == SIMGPU_RHYTHM_APERIODIC)
		aperiodic_phase(rhythm, done_seconds + BORDER_SECONDS, phase);
	else if (rhythm->kind == SIMGPU_RHYTHM_TIMER)
		timer_phase(rhythm, device_seconds + BORDER_SECONDS, phase);
	phase->work_left += BORDER_SECONDS;
	phase->time_left += BORDER_SECONDS;
}

int simgpu_rhythm_usable(const struct simgpu_rhythm *rhythm)
{
	if (rhythm->kind == SIMGPU_RHYTHM_STEADY)
		return 1;
	return rhythm->kind < SIMGPU_RHYTHM_COUNT && rhythm->period_seconds >= 0.01 && rhythm->high_share > 0.0 &&
	       rhythm->high_share < 1.0 && rhythm->low_level >= 0.0 && rhythm->low_level <= 1.0 &&
	       rhythm->jitter >= 0.0 && rhythm->jitter <= 0.5 && rhythm->stall_chance >= 0.0 &&
	       rhythm->stall_seconds >= 0.0 && rhythm->evaluation_seconds >= 0.0;
}
