/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The options as sbatch, srun, salloc and slurmstepd call them. */
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "fake_slurm.h"

extern int slurm_spank_init(spank_t spank, int argc, char **argv);
extern int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv);
extern int slurm_spank_task_init(spank_t spank, int argc, char **argv);

static int _give(const char *name, const char *argument, int remote)
{
	struct spank_option *option = fake_spank_option(name);

	CHECK(option);
	return option->cb(option->val, argument, remote);
}

static void test_the_options_are_registered_with_a_usage_line(void)
{
	static const char *const names[] = {
		"energy", "energy-max-slowdown", "energy-deadline", "energy-quiet", "energy-trials", "energy-gpus",
		"energy-redecide", "energy-clusters", "energy-data",
	};

	CHECK(slurm_spank_init(NULL, 0, NULL) == 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		struct spank_option *option = fake_spank_option(names[i]);

		CHECK(option && option->usage && option->usage[0]);
		CHECK(option->has_arg == (strcmp(names[i], "energy-quiet") != 0));
	}
}

static void test_without_options_nothing_is_passed_on(void)
{
	CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
	CHECK_TEXT(fake_spank_entries(), "");
}

static void test_a_bad_value_names_option_value_and_bound(void)
{
	CHECK(_give("energy", "turbo", 0) != 0);
	CHECK_TEXT(fake_slurm_last_error(), "--energy=turbo is not off, observe, balanced or saver");
	CHECK(_give("energy-max-slowdown", "201", 0) != 0);
	CHECK_TEXT(fake_slurm_last_error(),
		   "--energy-max-slowdown=201 is not a percentage from 0 to 200");
	CHECK(_give("energy-deadline", "a\x1b[31m", 0) != 0);
	CHECK(strstr(fake_slurm_last_error(), "--energy-deadline=a?[31m is not a time such as"));
	CHECK(_give("energy", NULL, 0) != 0);
}

static void test_a_deadline_in_the_past_is_an_error_that_tells_the_time_here(void)
{
	CHECK(_give("energy-deadline", "2020-01-01", 0) != 0);
	CHECK(strstr(fake_slurm_last_error(), "--energy-deadline=2020-01-01 has passed: it is 20"));
	CHECK(_give("energy-deadline", "now", 0) != 0);
	CHECK(_give("energy-deadline", "9999-01-01", 0) != 0);
	CHECK_TEXT(fake_slurm_last_error(),
		   "--energy-deadline=9999-01-01 is more than ten years ahead");
}

static void test_on_the_nodes_a_bad_value_harms_nothing(void)
{
	CHECK(_give("energy", "turbo", 1) == 0);
	CHECK(_give("energy-deadline", NULL, 1) == 0);
}

static void test_the_last_value_is_passed_on_by_sbatch_and_srun(void)
{
	setenv("TZ", "Europe/Berlin", 1);
	tzset();
	CHECK(_give("energy", "saver", 0) == 0);
	CHECK(_give("energy", "off", 0) == 0);
	CHECK(_give("energy-max-slowdown", "7.5%", 0) == 0);
	CHECK(_give("energy-deadline", "2030-03-01T08:00", 0) == 0);
	CHECK(_give("energy-quiet", NULL, 0) == 0);
	for (int i = 0; i < 2; i++) {
		fake_spank_context(i ? S_CTX_LOCAL : S_CTX_ALLOCATOR);
		fake_spank_forget();
		CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
		CHECK_TEXT(fake_spank_entries(),
			   "ENERGY_MODE=off\nENERGY_MAX_SLOWDOWN=7.5\n"
			   "ENERGY_DEADLINE=@1898578800\nENERGY_QUIET=1\n");
	}
}

static void test_a_terminal_behind_stderr_is_passed_on(void)
{
	int before = dup(2), terminal = posix_openpt(O_RDWR | O_NOCTTY), slave;

	CHECK((terminal >= 0) && !grantpt(terminal) && !unlockpt(terminal));
	slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
	CHECK(slave >= 0);
	fake_spank_context(S_CTX_ALLOCATOR);
	fake_spank_forget();
	CHECK(dup2(slave, 2) == 2);
	slurm_spank_init_post_opt(NULL, 0, NULL);
	CHECK(dup2(before, 2) == 2);
	CHECK(strstr(fake_spank_entries(), "ENERGY_TERMINAL=1\n"));
	close(slave);
	close(terminal);
	close(before);
}

static void test_energy_sbatch_as_parent_asks_for_an_explanation(void)
{
	char number[32];

	fake_spank_context(S_CTX_ALLOCATOR);
	for (int own = 0; own < 2; own++) {
		snprintf(number, sizeof(number), "%ld", own ? (long) getppid() : 1L + (long) getppid());
		setenv("SLURM_ENERGY_EXPLAIN_CALLER", number, 1);
		slurm_spank_init(NULL, 0, NULL);
		CHECK(!getenv("SLURM_ENERGY_EXPLAIN_CALLER"));
		fake_spank_forget();
		slurm_spank_init_post_opt(NULL, 0, NULL);
		CHECK(!strstr(fake_spank_entries(), "ENERGY_TERMINAL=explain\n") == !own);
	}
	slurm_spank_init(NULL, 0, NULL);
}

static void test_features_of_a_script_travel_from_the_parent_alone(void)
{
	static const struct {
		long off;
		const char *text, *entry;
	} cases[] = {
		{ 1, " v=1;model=bert", NULL },
		{ 0, " v=1;model=bert\nENERGY_DECISION=forged", NULL },
		{ 0, " V=1", NULL },
		{ 0, "", NULL },
		{ 0, " v=1;model=bert", "ENERGY_SCRIPT=v=1;model=bert\n" },
	};
	char given[128];

	fake_spank_context(S_CTX_ALLOCATOR);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(given, sizeof(given), "%ld%s", cases[i].off + (long) getppid(), cases[i].text);
		setenv("SLURM_ENERGY_SCRIPT_FEATURES", given, 1);
		slurm_spank_init(NULL, 0, NULL);
		CHECK(!getenv("SLURM_ENERGY_SCRIPT_FEATURES"));
		fake_spank_forget();
		slurm_spank_init_post_opt(NULL, 0, NULL);
		CHECK(!strstr(fake_spank_entries(), "ENERGY_SCRIPT=") == !cases[i].entry);
		CHECK(!cases[i].entry || strstr(fake_spank_entries(), cases[i].entry));
	}
}

static void test_in_other_contexts_nothing_is_set(void)
{
	static const spank_context_t contexts[] = {
		S_CTX_REMOTE, S_CTX_SLURMD, S_CTX_JOB_SCRIPT, S_CTX_ERROR,
	};

	fake_spank_forget();
	for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
		fake_spank_context(contexts[i]);
		CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
	}
	CHECK_TEXT(fake_spank_entries(), "");
}

static void test_a_job_submitted_inside_a_job_does_not_inherit_its_options(void)
{
	const char *name = "SLURM_SPANK__SLURM_SPANK_OPTION_energy_energy_deadline";

	fake_spank_context(S_CTX_ALLOCATOR);
	unsetenv("SLURM_JOB_ID");
	setenv(name, "now+1hour", 1);
	slurm_spank_init(NULL, 0, NULL);
	CHECK(getenv(name));	/* set at the shell: meant */
	setenv("SLURM_JOB_ID", "7", 1);
	slurm_spank_init(NULL, 0, NULL);
	CHECK(!getenv(name));
}

static void _set(const char *name, const char *value)
{
	CHECK(spank_setenv(NULL, name, value, 1) == ESPANK_SUCCESS);
}

/* The variables of a job that has four GPUs by decision, on a node where it, or a job inside it, has two. */
static void _batch_step(uint32_t step, const char *nodes)
{
	fake_spank_step(step);
	_set("SLURM_NNODES", nodes);
	_set("SLURM_ENERGY_GPUS", "4");
	_set("SLURM_GPUS", "a100:4");
	_set("SLURM_NTASKS", "8");
	_set("SLURM_NPROCS", "3");
	_set("SLURM_GPUS_ON_NODE", "2");
	CHECK(slurm_spank_task_init(NULL, 0, NULL) == 0);
}

static void test_a_job_that_named_no_range_keeps_its_variables_whatever_it_inherits(void)
{
	_batch_step(SLURM_BATCH_SCRIPT, "1");
	CHECK_TEXT(fake_spank_variable("SLURM_ENERGY_GPUS"), "4");
	CHECK_TEXT(fake_spank_variable("SLURM_GPUS"), "a100:4");
	CHECK_TEXT(fake_spank_variable("SLURM_NTASKS"), "8");
}

static void test_a_job_submitted_inside_a_job_does_not_inherit_its_number_of_gpus(void)
{
	static const char *const names[] = { "SLURM_ENERGY_GPUS", "SLURM_ENERGY_GPUS_ASKED" };

	for (size_t i = 0; i < 2; i++) {
		setenv(names[i], "4", 1);
		fake_spank_context(S_CTX_LOCAL);
		slurm_spank_init(NULL, 0, NULL);
		CHECK(getenv(names[i]));	/* srun: a step of the job itself */
		fake_spank_context(S_CTX_ALLOCATOR);
		slurm_spank_init(NULL, 0, NULL);
		CHECK(!getenv(names[i]));
	}
}

static void test_the_variables_of_a_batch_script_follow_a_later_change(void)
{
	CHECK(_give("energy-gpus", "2-4", 1) == 0);	/* as slurmstepd reads what the job itself was submitted with */
	_batch_step(SLURM_BATCH_SCRIPT, "1");
	CHECK_TEXT(fake_spank_variable("SLURM_ENERGY_GPUS"), "2");
	CHECK_TEXT(fake_spank_variable("SLURM_GPUS"), "a100:2");
	CHECK_TEXT(fake_spank_variable("SLURM_NTASKS"), "4");
	CHECK_TEXT(fake_spank_variable("SLURM_NPROCS"), "3");
	CHECK(!fake_spank_variable("SLURM_GPUS_PER_NODE"));
}

static void test_steps_of_srun_and_jobs_of_several_nodes_keep_their_variables(void)
{
	_batch_step(0, "1");
	CHECK_TEXT(fake_spank_variable("SLURM_GPUS"), "a100:4");
	_batch_step(SLURM_BATCH_SCRIPT, "2");
	CHECK_TEXT(fake_spank_variable("SLURM_GPUS"), "a100:4");
}

static void test_numbers_of_gpus_are_checked_and_passed_on(void)
{
	struct spank_option *option = fake_spank_option("energy-gpus");
	const char *const bad[] = { "", "0", "2-", "8-2", "a", "2,,4", "1-33", "2-8 ", "4097", "2:4" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(option->cb(option->val, bad[i], 0) == -1);
	CHECK(option->cb(option->val, "2-4,8", 0) == 0);
	fake_spank_context(S_CTX_ALLOCATOR);
	fake_spank_forget();
	CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
	CHECK(strstr(fake_spank_entries(), "ENERGY_GPUS=2-4,8\n"));
}

static void test_what_energy_sbatch_alone_carries_out_travels_nowhere(void)
{
	CHECK(_give("energy-clusters", "a,b", 0) == 0);
	CHECK(_give("energy-data", "200GB@a", 0) == 0);
	CHECK(slurm_spank_init_post_opt(NULL, 0, NULL) == 0);
	CHECK(!strstr(fake_spank_entries(), "a,b"));
	CHECK(!strstr(fake_spank_entries(), "200GB"));
}

int main(void)
{
	int silent = open("/dev/null", O_RDWR);

	/* A test that fails says so on the stream that it began with. */
	if (isatty(2) && (dup2(silent, 2) != 2))
		return 1;
	close(silent);
	RUN(test_the_options_are_registered_with_a_usage_line);
	RUN(test_without_options_nothing_is_passed_on);
	RUN(test_a_bad_value_names_option_value_and_bound);
	RUN(test_a_deadline_in_the_past_is_an_error_that_tells_the_time_here);
	RUN(test_on_the_nodes_a_bad_value_harms_nothing);
	RUN(test_the_last_value_is_passed_on_by_sbatch_and_srun);
	RUN(test_a_terminal_behind_stderr_is_passed_on);
	RUN(test_features_of_a_script_travel_from_the_parent_alone);
	RUN(test_energy_sbatch_as_parent_asks_for_an_explanation);
	RUN(test_in_other_contexts_nothing_is_set);
	RUN(test_numbers_of_gpus_are_checked_and_passed_on);
	RUN(test_a_job_submitted_inside_a_job_does_not_inherit_its_number_of_gpus);
	RUN(test_a_job_that_named_no_range_keeps_its_variables_whatever_it_inherits);
	RUN(test_the_variables_of_a_batch_script_follow_a_later_change);
	RUN(test_steps_of_srun_and_jobs_of_several_nodes_keep_their_variables);
	RUN(test_what_energy_sbatch_alone_carries_out_travels_nowhere);
	RUN(test_a_job_submitted_inside_a_job_does_not_inherit_its_options);
	return 0;
}
