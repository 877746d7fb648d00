/* Power, clocks, work and heat. Between two changes all rates are constant, so settling lazily is exact. */
#include "simgpu.h"

#include <math.h>
#include <string.h>

struct simgpu_account *simgpu_account(struct simgpu_gpu *gpu)
{
	return &gpu->account[gpu->account_current & 1];
}

static const struct simgpu_account *account_of(const struct simgpu_gpu *gpu)
{
	return &gpu->account[gpu->account_current & 1];
}

static uint32_t highest_clock(const struct simgpu_gpu *gpu)
{
	return gpu->clock_count ? gpu->clocks_mhz[gpu->clock_count - 1] : 0;
}

static int is_active(const struct simgpu_gpu *gpu, int slot)
{
	const struct simgpu_load *load = &gpu->loads[slot];

	if (!load->in_use || load->paused)
		return 0;
	return load->target_seconds <= 0.0 || account_of(gpu)->done_seconds[slot] < load->target_seconds;
}

static double curve_watts(const struct simgpu_curve *curve, double clock_mhz)
{
	double f = clock_mhz / curve->reference_clock_mhz;

	return curve->cubic_watts * f * f * f + curve->linear_watts * f + curve->constant_watts;
}

static double curve_time(const struct simgpu_curve *curve, double clock_mhz)
{
	double f = clock_mhz / curve->reference_clock_mhz;

	return fmax(curve->memory_share, curve->compute_share / f) + curve->fixed_share;
}

/* What a load adds to the idle context: never less than nothing. */
static double load_watts(const struct simgpu_gpu *gpu, const struct simgpu_load *load, double clock_mhz)
{
	return load->utilisation * fmax(0.0, curve_watts(&load->curve, clock_mhz) - gpu->idle_context_watts);
}

static void phase_of(const struct simgpu_gpu *gpu, int slot, struct simgpu_phase *phase)
{
	simgpu_phase_of(&gpu->loads[slot].rhythm, account_of(gpu)->done_seconds[slot], account_of(gpu)->device_seconds,
			phase);
}

static double watts_at(const struct simgpu_gpu *gpu, const double *levels, double slice, double clock_mhz)
{
	double watts = gpu->idle_context_watts;
	int slot;

	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++)
		if (is_active(gpu, slot))
			watts += slice * levels[slot] * load_watts(gpu, &gpu->loads[slot], clock_mhz);
	return watts;
}

/* The clock that the settings ask for: the top of the locked range, else the application clock, else the highest. */
static uint32_t wanted_clock(const struct simgpu_gpu *gpu)
{
	if (gpu->locked_high_mhz)
		return gpu->locked_high_mhz;
	return gpu->application_clock_mhz ? gpu->application_clock_mhz : highest_clock(gpu);
}

static uint32_t resting_clock(const struct simgpu_gpu *gpu)
{
	uint32_t clock = gpu->idle_clock_mhz;

	if (gpu->locked_high_mhz && clock > gpu->locked_high_mhz)
		clock = gpu->locked_high_mhz;
	return clock < gpu->locked_low_mhz ? gpu->locked_low_mhz : clock;
}

/* The board holds its limit by stepping the clock down from what was asked. */
static void cap(const struct simgpu_gpu *gpu, const double *levels, struct simgpu_operating_point *point)
{
	double limit = fmax(gpu->holding_share * gpu->power_limit_milliwatts / 1000.0, gpu->capping_floor_watts);
	uint32_t wanted = wanted_clock(gpu);
	uint32_t step;

	for (step = gpu->clock_count; step-- > 0;) {
		if (gpu->clocks_mhz[step] > wanted && step > 0)
			continue;
		point->sm_clock_mhz = gpu->clocks_mhz[step];
		point->watts = watts_at(gpu, levels, point->slice, point->sm_clock_mhz);
		if (point->watts <= limit)
			return;
	}
}

void simgpu_evaluate(const struct simgpu_gpu *gpu, struct simgpu_operating_point *point)
{
	double levels[SIMGPU_MAX_LOADS] = {0.0};
	struct simgpu_phase phase;
	double asked = 0.0;
	int slot;

	memset(point, 0, sizeof(*point));
	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		if (!gpu->loads[slot].in_use)
			continue;
		point->contexts++;
		if (!is_active(gpu, slot))
			continue;
		asked += gpu->loads[slot].utilisation;
		phase_of(gpu, slot, &phase);
		levels[slot] = phase.level;
	}
	point->slice = asked > 1.0 ? 1.0 / asked : 1.0;
	point->utilisation = asked > 1.0 ? 1.0 : asked;
	if (!point->contexts) {
		point->watts = gpu->idle_watts;
		point->sm_clock_mhz = resting_clock(gpu);
	} else {
		cap(gpu, levels, point);
	}
	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++)
		if (is_active(gpu, slot))
			point->work_rate += gpu->loads[slot].utilisation * simgpu_load_speed(gpu, slot, point);
}

/* The clock at which the board runs a load alone when neither clock nor limit is set. */
uint32_t simgpu_default_clock(const struct simgpu_gpu *gpu, const struct simgpu_load *load)
{
	double limit = fmax(gpu->holding_share * gpu->default_limit_milliwatts / 1000.0, gpu->capping_floor_watts);
	uint32_t step;

	for (step = gpu->clock_count; step-- > 1;)
		if (gpu->idle_context_watts + load_watts(gpu, load, gpu->clocks_mhz[step]) <= limit)
			return gpu->clocks_mhz[step];
	return gpu->clocks_mhz[0];
}

/* Work done per device second, as a ratio to the speed alone at the default clock. */
double simgpu_load_speed(const struct simgpu_gpu *gpu, int slot, const struct simgpu_operating_point *point)
{
	const struct simgpu_load *load = &gpu->loads[slot];
	struct simgpu_phase phase;

	phase_of(gpu, slot, &phase);
	if (phase.fixed_speed > 0.0)
		return phase.fixed_speed;
	return phase.speed * point->slice * curve_time(&load->curve, load->default_clock_mhz) /
	       curve_time(&load->curve, point->sm_clock_mhz);
}

/* Device seconds until a load reaches its target or another phase of its rhythm, at most `longest`. */
static double until_change(const struct simgpu_gpu *gpu, const struct simgpu_operating_point *point, double longest)
{
	double soonest = longest;
	int slot;

	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		const struct simgpu_load *load = &gpu->loads[slot];
		struct simgpu_phase phase;
		double speed;

		if (!is_active(gpu, slot))
			continue;
		phase_of(gpu, slot, &phase);
		speed = simgpu_load_speed(gpu, slot, point);
		if (load->target_seconds > 0.0)
			soonest = fmin(soonest, (load->target_seconds - account_of(gpu)->done_seconds[slot]) / speed);
		soonest = fmin(soonest, fmin(phase.work_left / speed, phase.time_left));
	}
	return soonest;
}

/* Carry the account over `span` seconds at one operating point, into the spare copy, and switch over. */
static void advance(struct simgpu_gpu *gpu, const struct simgpu_operating_point *point, double span,
		    const struct simgpu_state *state)
{
	double interval = state->counter_interval_seconds;
	const struct simgpu_account *before = account_of(gpu);
	uint32_t spare = (gpu->account_current & 1) ^ 1;
	struct simgpu_account *after = &gpu->account[spare];
	double warm = gpu->ambient_c + gpu->kelvin_per_watt * point->watts;
	double boundary;
	int slot;

	*after = *before;
	after->device_seconds = before->device_seconds + span;
	after->energy_joules = before->energy_joules + point->watts * span;
	boundary = interval > 0.0 ? floor(after->device_seconds / interval) * interval : after->device_seconds;
	if (boundary >= before->device_seconds)
		after->published_joules =
			before->energy_joules + point->watts * (boundary - before->device_seconds);
	if (gpu->thermal_seconds > 0.0)
		after->temperature_c += (warm - before->temperature_c) * -expm1(-span / gpu->thermal_seconds);
	after->average_watts = point->watts;
	if (state->power_averaging_seconds > 0.0)
		after->average_watts +=
			(before->average_watts - point->watts) * exp(-span / state->power_averaging_seconds);
	for (slot = 0; slot < SIMGPU_MAX_LOADS; slot++) {
		const struct simgpu_load *load = &gpu->loads[slot];
		double done = before->done_seconds[slot];

		if (!is_active(gpu, slot))
			continue;
		done += simgpu_load_speed(gpu, slot, point) * span;
		/* The last step of a span that was cut at the finish must arrive, whatever the rounding. */
		if (load->target_seconds > 0.0 && done > load->target_seconds * (1.0 - 1e-12))
			done = load->target_seconds;
		after->done_seconds[slot] = done;
	}
	__atomic_store_n(&gpu->account_current, spare, __ATOMIC_RELEASE);
}

void simgpu_settle(struct simgpu_state *state, uint32_t index)
{
	struct simgpu_gpu *gpu = &state->gpus[index];
	double now = simgpu_device_seconds(state);
	struct simgpu_operating_point point;
	double left;

	/* Each pass ends at `now`, at a finish or at the next phase of a rhythm. */
	for (left = now - account_of(gpu)->device_seconds; left > 0.0; left = now - account_of(gpu)->device_seconds) {
		double span;

		simgpu_evaluate(gpu, &point);
		span = until_change(gpu, &point, left);
		advance(gpu, &point, span, state);
		if (span >= left)
			break;
	}
	simgpu_drop_dead_loads(gpu);
}

uint64_t simgpu_counter_millijoules(const struct simgpu_gpu *gpu)
{
	double joules = account_of(gpu)->published_joules - gpu->counter_offset_joules;

	if (gpu->faults & (1ULL << SIMGPU_FAULT_ENERGY_STUCK))
		joules = gpu->stuck_joules;
	return joules > 0.0 ? (uint64_t)(joules * 1000.0 + 0.5) : 0;
}
