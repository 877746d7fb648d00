/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Other numbers of GPUs for a job: which are offered, what of the job changes, and what stands against one. */
#include <stdint.h>

#include "check.h"
#include "fake_partitions.h"
#include "fake_slurm.h"
#include "job_submit_energy/job.h"
#include "job_submit_energy/slurm_memory.h"

static job_desc_msg_t job;
static energy_gpu_plan_t plan;
static const char *const names[] = { "a100", "a40" };

static void _begin(const char *range)
{
	char entry[80];

	fake_partitions(names, 2);
	fake_slurm_empty_job(&job);
	snprintf(entry, sizeof(entry), "ENERGY_GPUS=%s", range);
	fake_slurm_add_entry(&job, entry);
	job.user_id = 1000;
	job.script = fake_slurm_string("#!/bin/sh\npython train.py\n");
	job.min_cpus = 1;
	job.time_limit = 60;
}

static void _finish(void)
{
	fake_slurm_memory(-1);
	slurm_xfree((void **) &job.tres_per_task);
	fake_slurm_free_job(&job);
}

static void _variable(const char *text)
{
	slurm_xrecalloc((void **) &job.environment, job.env_size + 2, sizeof(char *), true, false, NULL, 0, NULL);
	job.environment[job.env_size++] = fake_slurm_string(text);
}

static const char *_value(const char *name)
{
	for (uint32_t i = 0; i < job.env_size; i++) {
		if (!strncmp(job.environment[i], name, strlen(name)) && (job.environment[i][strlen(name)] == '='))
			return job.environment[i] + strlen(name) + 1;
	}
	return NULL;
}

static const char *_refusal(void)
{
	energy_gpu_plan(&job, 1000, &plan);
	CHECK(plan.refusal && !plan.count);
	return plan.refusal;
}

static const energy_gpu_option_t *_offered(uint32_t gpus)
{
	const energy_gpu_option_t *option;

	energy_gpu_plan(&job, 1000, &plan);
	CHECK(!plan.refusal);
	option = energy_gpu_option(&plan, gpus);
	CHECK(option);
	return option;
}

static bool _is_offered(uint32_t gpus)
{
	energy_gpu_plan(&job, 1000, &plan);
	return energy_gpu_option(&plan, gpus) != NULL;
}

static void _apply(uint32_t gpus)
{
	CHECK(energy_gpu_apply(&job, &plan, _offered(gpus)));
}

static void test_ranges_and_lists_are_read_and_nothing_else(void)
{
	const char *const bad[] = { "", "-", "0", "2-", "-2", "4-2", "1,", "1-40", "99999", "2 4", "+2", "0x2" };
	energy_counts_t counts;

	CHECK(energy_counts_read("8,2-4,3", &counts));
	CHECK((counts.count == 4) && (counts.values[0] == 2) && (counts.values[3] == 8));
	CHECK(energy_counts_read("1-32", &counts) && (counts.count == 32));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(!energy_counts_read(bad[i], &counts));
}

static void test_a_job_without_a_range_is_not_looked_at(void)
{
	_begin("2-8");
	job.spank_job_env[0][7] = 'X';
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	energy_gpu_plan(&job, 1000, &plan);
	CHECK(!plan.is_declared && !plan.count && !plan.refusal);
	_finish();
}

static void test_only_the_digits_of_a_request_change(void)
{
	const char *const forms[][2] = {
		{ "gres:gpu:4", "gres:gpu:2" }, { "gpu:4", "gpu:2" }, { "gpu:a100:4", "gpu:a100:2" },
		{ "gres/gpu:a100:4", "gres/gpu:a100:2" }, { "gres/gpu=4", "gres/gpu=2" },
		{ "nvme:4,gpu:4,shard:4", "nvme:4,gpu:2,shard:4" }, { "gpu:3090:4", "gpu:3090:2" },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		_begin("2-8");
		job.tres_per_node = fake_slurm_string(forms[i][0]);
		_apply(2);
		CHECK_TEXT(job.tres_per_node, forms[i][1]);
		_finish();
	}
}

static void test_a_request_without_one_plain_number_is_refused(void)
{
	const char *const forms[] = { "gpu", "gpu:a100", "gpu:a100:2,gpu:h100:2", "gpu:4k", "gpu:0", "gpu:", "gpu:a:b:4" };

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		_begin("1-8");
		job.tres_per_node = fake_slurm_string(forms[i]);
		CHECK_TEXT(_refusal(), "its GPUs are of several types, or not a plain number");
		_finish();
	}
}

static void test_a_range_in_slurms_own_options_is_seen(void)
{
	_begin("1-8");
	job.tres_per_job = fake_slurm_string("gres:gpu:2-8");
	CHECK(energy_gpu_is_range(&job));
	job.tres_per_job[11] = '\0';
	CHECK_TEXT(job.tres_per_job, "gres:gpu:2-");
	CHECK(!energy_gpu_is_range(&job));
	job.tres_per_node = fake_slurm_string("nvme:1,gres:gpu:a100-80:2");
	CHECK(!energy_gpu_is_range(&job));
	slurm_xfree((void **) &job.tres_per_node);
	job.tres_per_node = fake_slurm_string("gres:gpu:a100:2-8,nvme:1");
	CHECK(energy_gpu_is_range(&job));
	_finish();
}

static void test_time_follows_fewer_gpus_and_stays_for_more(void)
{
	_begin("1-8");
	job.tres_per_job = fake_slurm_string("gres:gpu:3");
	CHECK(_offered(2)->time_limit == 90);
	CHECK(_offered(1)->time_limit == 180);
	CHECK(_offered(8)->time_limit == 60);
	fake_partition("a100")->max_time = 100;
	CHECK(_is_offered(2) && !_is_offered(1) && _is_offered(8));
	job.time_limit = NO_VAL;
	fake_partition("a100")->default_time = 30;
	CHECK(_offered(2)->time_limit == 45);
	job.time_limit = INFINITE;
	CHECK(_offered(2)->time_limit == INFINITE);
	_finish();
}

static void test_every_partition_must_allow_the_longer_time(void)
{
	_begin("1-2");
	job.tres_per_job = fake_slurm_string("gres:gpu:2");
	job.partition = fake_slurm_string("a100,a40");
	fake_partition("a40")->max_time = 90;
	CHECK_TEXT(_refusal(), "fewer GPUs would need more time than MaxTime");
	fake_partition("a40")->max_time = 120;
	CHECK(_is_offered(1));
	_finish();
}

static void test_tasks_follow_gpus_or_nodes(void)
{
	_begin("1-16");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.min_nodes = job.max_nodes = 2;
	job.num_tasks = 8;
	job.ntasks_per_node = 4;
	job.min_cpus = 16;
	job.cpus_per_task = 2;
	_variable("SLURM_NTASKS=8");
	_variable("SLURM_NPROCS=8");
	_variable("SLURM_NTASKS_PER_NODE=4");
	_variable("SLURM_GPUS_PER_NODE=a100:4");
	CHECK(!_is_offered(6) && _is_offered(12));
	_apply(2);
	CHECK((job.min_nodes == 1) && (job.max_nodes == 1) && (job.num_tasks == 2) && (job.ntasks_per_node == 2));
	CHECK((job.min_cpus == 4) && (job.cpus_per_task == 2));
	CHECK_TEXT(job.tres_per_node, "gres:gpu:2");
	CHECK_TEXT(_value("SLURM_NTASKS"), "2");
	CHECK_TEXT(_value("SLURM_NPROCS"), "2");
	CHECK_TEXT(_value("SLURM_NTASKS_PER_NODE"), "2");
	CHECK_TEXT(_value("SLURM_GPUS_PER_NODE"), "a100:2");
	CHECK_TEXT(_value("SLURM_ENERGY_GPUS"), "2");
	CHECK_TEXT(_value("SLURM_ENERGY_GPUS_ASKED"), "8");
	CHECK(!job.environment[job.env_size]);
	_finish();
	_begin("4-16");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.min_nodes = job.max_nodes = job.num_tasks = job.min_cpus = 2;
	_apply(16);
	CHECK((job.min_nodes == 4) && (job.num_tasks == 4) && (job.min_cpus == 4));
	CHECK_TEXT(job.tres_per_node, "gres:gpu:4");
	_finish();
}

static void test_gpus_of_a_task_and_tasks_of_a_gpu_give_the_number_of_tasks(void)
{
	_begin("1-8");
	job.tres_per_task = fake_slurm_string("gres:gpu:2");
	job.num_tasks = job.min_cpus = 2;
	job.min_nodes = job.max_nodes = 1;
	CHECK(!_is_offered(3));
	_apply(8);
	CHECK((job.num_tasks == 4) && (job.min_cpus == 4));
	CHECK_TEXT(job.tres_per_task, "gres:gpu:2");
	_finish();
	_begin("1-8");
	job.num_tasks = 8;
	job.ntasks_per_tres = 2;
	_apply(2);
	CHECK((job.num_tasks == 4) && (job.ntasks_per_tres == 2) && (job.min_cpus == 1));
	_finish();
}

static void test_tasks_that_follow_nothing_are_refused(void)
{
	_begin("1-8");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	job.num_tasks = job.min_cpus = 6;
	CHECK_TEXT(_refusal(), "its tasks are no multiple of its GPUs");
	job.num_tasks = 0;
	job.num_tasks = job.min_cpus = 1;
	CHECK(_is_offered(8));
	slurm_xfree((void **) &job.tres_per_job);
	job.tres_per_job = fake_slurm_string("gres:gpu:1");
	CHECK(strstr(_refusal(), "one task for one GPU"));
	_finish();
}

static void test_with_an_open_number_of_nodes_only_fewer_gpus_are_offered(void)
{
	_begin("1-8");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	job.num_tasks = job.min_cpus = 4;
	CHECK(_is_offered(2) && !_is_offered(8));
	fake_partition("a100")->min_nodes = 2;
	CHECK(strstr(_refusal(), "MinNodes"));
	fake_partition("a100")->min_nodes = 0;
	job.min_nodes = job.max_nodes = 1;
	CHECK(_is_offered(2) && _is_offered(8));
	_finish();
	_begin("4,8");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	job.num_tasks = job.min_cpus = 4;
	CHECK(strstr(_refusal(), "its number of nodes is open (give --nodes)"));
	_finish();
}

static void test_gpus_by_job_and_by_node_need_a_number_of_nodes(void)
{
	_begin("1-8");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	job.tres_per_node = fake_slurm_string("gres:gpu:2");
	job.num_tasks = job.min_cpus = 4;
	CHECK_TEXT(_refusal(), "its number of nodes is open");
	job.min_nodes = job.max_nodes = 2;
	CHECK(_is_offered(2) && !_is_offered(3));
	_finish();
}

static void test_memory_of_a_node_grows_with_its_gpus_and_never_shrinks(void)
{
	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.pn_min_memory = 1001;
	CHECK(_offered(8)->memory == 2002);
	CHECK(_offered(1)->memory == 1001);
	job.pn_min_memory = 1000 | MEM_PER_CPU;
	CHECK(_offered(8)->memory == (1000 | MEM_PER_CPU));
	job.pn_min_memory = 1000;
	fake_partition("a100")->max_memory = 4000;
	CHECK(_is_offered(1) && !_is_offered(8));
	_finish();
}

static void test_what_is_asked_for_each_task_and_gpu_is_counted_for_the_nodes(void)
{
	static char cpus[] = "gres:gpu:6", memory[] = "gres:gpu:16384", several[] = "gres:gpu:6,gres:gpu:a100:8";

	_begin("1-16");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.min_nodes = job.max_nodes = 2;
	job.cpus_per_tres = cpus;
	job.mem_per_tres = memory;
	CHECK((_offered(16)->cpus == 96) && (_offered(16)->node_memory == 4 * 16384) && (_offered(2)->node_memory == 2 * 16384));
	fake_partition("a100")->total_cpus = 95;
	CHECK(_is_offered(12) && !_is_offered(16));
	fake_partition("a100")->total_cpus = 128;
	fake_partition("a100")->max_memory = 100000;
	CHECK(_is_offered(2) && !_is_offered(12));
	fake_partition("a100")->max_memory = 0;
	slurm_conf.max_mem_per_cpu = 100000;
	CHECK(_is_offered(2) && !_is_offered(12));
	slurm_conf.max_mem_per_cpu = 0;
	job.cpus_per_tres = several;
	CHECK(_is_offered(2) && !_is_offered(12));
	job.cpus_per_tres = NULL;
	job.mem_per_tres = several;
	CHECK(_is_offered(2) && !_is_offered(12));
	job.mem_per_tres = NULL;
	_finish();
	_begin("1-8");	/* sbatch states the CPUs of one task here */
	job.min_nodes = job.max_nodes = 1;
	job.num_tasks = 8;
	job.ntasks_per_tres = 2;
	job.cpus_per_task = job.min_cpus = 3;
	CHECK((_offered(8)->cpus == 48) && (_offered(8)->min_cpus == 3) && (_offered(2)->cpus == 12));
	_finish();
}

static void test_memory_by_cpu_keeps_more_gpus_out_where_they_need_more_cpus(void)
{
	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.min_nodes = job.max_nodes = 1;
	job.num_tasks = job.min_cpus = 4;
	CHECK(_is_offered(2) && _is_offered(8));
	job.pn_min_memory = 1000 | MEM_PER_CPU;
	CHECK(_is_offered(2) && !_is_offered(8));
	job.pn_min_memory = NO_VAL64;
	fake_partition("a100")->default_memory = 1000 | MEM_PER_CPU;
	CHECK(_is_offered(2) && !_is_offered(8));
	fake_partition("a100")->default_memory = 1000;
	slurm_conf.def_mem_per_cpu = 1000 | MEM_PER_CPU;
	CHECK(_is_offered(2) && _is_offered(8));
	fake_partition("a100")->default_memory = 0;
	CHECK(_is_offered(2) && !_is_offered(8));
	job.num_tasks = job.min_cpus = 1;	/* no more CPUs then */
	CHECK(_is_offered(8));
	_finish();
}

static void test_where_slurm_gives_cpus_or_memory_by_gpu_no_more_are_offered(void)
{
	static int list;

	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	fake_partition("a100")->cpus_per_gpu = 8;
	CHECK(_is_offered(2) && !_is_offered(8));
	fake_partition("a100")->cpus_per_gpu = 0;
	slurm_conf.job_defaults_list = (void *) &list;
	CHECK(_is_offered(2) && !_is_offered(8));
	_finish();
}

static void test_what_ties_a_job_to_its_form_is_refused_with_the_reason(void)
{
	static char text[] = "something";
	struct {
		char **field;
		const char *why;
	} texts[] = {
		{ &job.req_nodes, "it names its nodes (--nodelist)" },
		{ &job.reservation, "it runs in a reservation" },
		{ &job.tres_per_socket, "it asks for GPUs by socket" },
		{ &job.clusters, "it names clusters or a burst buffer" },
	};

	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		*texts[i].field = text;
		CHECK_TEXT(_refusal(), texts[i].why);
		*texts[i].field = NULL;
	}
	job.het_job_offset = 0;
	CHECK_TEXT(_refusal(), "it is a part of a heterogeneous job");
	job.het_job_offset = NO_VAL;
	job.shared = JOB_SHARED_NONE;
	CHECK_TEXT(_refusal(), "it takes whole nodes (--exclusive)");
	job.shared = NO_VAL16;
	job.req_switch = 1;
	CHECK_TEXT(_refusal(), "it limits its switches");
	job.req_switch = NO_VAL;
	job.min_nodes = 1;
	job.max_nodes = 2;
	CHECK_TEXT(_refusal(), "it gives a range of nodes");
	job.min_nodes = job.max_nodes = NO_VAL;
	fake_partition("a100")->max_share = 0;
	CHECK_TEXT(_refusal(), "its partition gives whole nodes");
	fake_partition("a100")->max_share = 1;
	slurm_xfree((void **) &job.script);
	CHECK_TEXT(_refusal(), "only batch jobs change their number of GPUs");
	_finish();
}

static void test_what_a_job_says_of_cores_and_the_place_of_nodes_is_refused(void)
{
	struct {
		uint16_t *field;
		uint16_t value;
		const char *why;
	} numbers[] = {
		{ &job.threads_per_core, 1, "it limits the threads of a core (--threads-per-core or --hint)" },
		{ &job.cpu_bind_type, CPU_BIND_ONE_THREAD_PER_CORE,
		  "it limits the threads of a core (--threads-per-core or --hint)" },
		{ &job.core_spec, 0, "it sets cores or threads aside (--core-spec or --thread-spec)" },
		{ &job.core_spec, CORE_SPEC_THREAD | 2, "it sets cores or threads aside (--core-spec or --thread-spec)" },
		{ &job.contiguous, 1, "it asks for nodes side by side (--contiguous)" },
		{ &job.pn_min_cpus, 8, "it asks for CPUs of a node (--mincpus)" },
	};

	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.cpus_per_task = job.min_cpus = 2;
	job.contiguous = 0;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		uint16_t before = *numbers[i].field;

		*numbers[i].field = numbers[i].value;
		CHECK_TEXT(_refusal(), numbers[i].why);
		*numbers[i].field = before;
	}
	job.pn_min_cpus = 2;	/* of one task, as sbatch states it */
	CHECK(_is_offered(2) && _is_offered(8));
	_finish();
}

static void test_a_range_without_the_jobs_own_number_is_refused(void)
{
	_begin("2,8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	CHECK_TEXT(_refusal(), "its own number of GPUs is not among those of --energy-gpus");
	_finish();
}

static void test_limits_of_account_and_qos_keep_the_number_where_they_could_break(void)
{
	static char limit[] = "1001=8";

	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	slurm_conf.accounting_storage_enforce = 0x2;
	fake_account.def_qos_id = 1;
	CHECK(_is_offered(1) && _is_offered(8));
	fake_qos.max_tres_pu = limit;
	CHECK(_is_offered(1) && !_is_offered(8));
	fake_qos.max_tres_pu = NULL;
	fake_qos.max_wall_pj = 90;
	CHECK(!_is_offered(1) && _is_offered(8));
	fake_qos.max_wall_pj = INFINITE;
	fake_account.grp_tres = limit;
	CHECK(_is_offered(1) && !_is_offered(8));
	fake_account.grp_tres_mins = limit;
	CHECK_TEXT(_refusal(), "its account limits GPUs or time");
	slurm_conf.accounting_storage_enforce = 0;
	CHECK(_is_offered(1) && _is_offered(8));
	_finish();
}

static void test_where_slurm_chooses_the_qos_no_other_number_is_offered(void)
{
	_begin("1-8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	slurm_conf.accounting_storage_enforce = 0x2;
	CHECK(strstr(_refusal(), "neither it nor its account names a QOS"));
	job.qos = fake_slurm_string("normal");
	CHECK(_is_offered(1) && _is_offered(8));
	slurm_xfree((void **) &job.qos);
	slurm_conf.accounting_storage_enforce = 0;
	CHECK(_is_offered(1) && _is_offered(8));
	_finish();
}

static void test_numbers_that_are_written_out_in_a_script_are_found(void)
{
	const char *const fixed[] = {
		"srun -n 4 ./a", "srun -n4 ./a", "srun --ntasks=4 ./a", "srun \\\n  --gpus 4 ./a", "cd x && srun -N2 ./a",
		"/usr/bin/srun --gres=gpu:a100:2 ./a", "mpirun -np 4 ./a", "torchrun --nproc_per_node=4 a.py",
		"python -m torch.distributed.run --nproc-per-node 4 a.py", "accelerate launch --num_processes 4 a.py",
		"deepspeed --num_gpus=4 a.py", "if true; then srun --ntasks=\"4\" ./a; fi", "srun -G2 ./a",
		"mpirun --map-by ppr:4:node ./a",
	};
	const char *const open[] = {
		"srun ./a", "srun -n $SLURM_NTASKS ./a", "srun --ntasks=\"$N\" ./a", "# srun -n 4 ./a",
		"#SBATCH -n 4", "echo -n 4", "torchrun --nnodes=1 --nproc_per_node=gpu a.py", "srun -N1 -n1 nvidia-smi",
		"srun -l env; head -n 4 log", "srun --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES a.py",
		"srun --cpus-per-task=4 ./a", "srun -c4 ./a",
	};

	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		CHECK(energy_script_has_counts(fixed[i]));
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
		CHECK(!energy_script_has_counts(open[i]));
}

static void test_without_memory_the_job_is_as_it_was(void)
{
	for (int allowed = 0; allowed < 12; allowed++) {
		bool applied;

		_begin("1-8");
		job.tres_per_job = fake_slurm_string("gres:gpu:4");
		job.num_tasks = job.min_cpus = 4;
		_variable("SLURM_GPUS=4");
		_variable("SLURM_NTASKS=4");
		energy_gpu_plan(&job, 1000, &plan);
		CHECK(energy_gpu_option(&plan, 2));
		fake_slurm_memory(allowed);
		applied = energy_gpu_apply(&job, &plan, energy_gpu_option(&plan, 2));
		fake_slurm_memory(-1);
		CHECK_TEXT(job.tres_per_job, applied ? "gres:gpu:2" : "gres:gpu:4");
		CHECK_TEXT(_value("SLURM_GPUS"), applied ? "2" : "4");
		CHECK(job.num_tasks == (applied ? 2U : 4U));
		CHECK(job.env_size == (applied ? 4U : 2U));
		_finish();
	}
}

static void test_an_answer_that_was_not_offered_changes_nothing_at_all(void)
{
	energy_reply_t reply = { .decision_id = "abcdefgh1", .entry = "v=1", .gpus = 6, .partition = "a40" };
	char why[200];

	_begin("2,4");
	job.tres_per_job = fake_slurm_string("gres:gpu:4");
	energy_gpu_plan(&job, 1000, &plan);
	CHECK(energy_job_apply(&job, 1000, &reply, &plan, why, sizeof(why)) == ENERGY_APPLIED_NOTHING);
	CHECK_TEXT(why, "6");
	CHECK_TEXT(job.tres_per_job, "gres:gpu:4");
	CHECK((job.spank_job_env_size == 1) && !job.partition && (job.time_limit == 60));
	_finish();
}

static void test_the_request_tells_what_is_offered(void)
{
	static char bytes[ENERGY_REPLY_BYTES], cpus[] = "gres:gpu:8", memory[] = "gres:gpu:1000";
	size_t length;

	_begin("2,4,8");
	job.tres_per_node = fake_slurm_string("gres:gpu:4");
	job.pn_min_memory = 1000;
	job.min_nodes = job.max_nodes = 1;
	energy_gpu_plan(&job, 1000, &plan);
	length = energy_job_request(&job, 1000, &plan, bytes, sizeof(bytes) - 1);
	bytes[length] = '\0';
	CHECK(strstr(bytes, "\nenergy_gpus=2,4,8\n"));
	CHECK(strstr(bytes, "\ngpu_asked=4\n"));
	CHECK(strstr(bytes, "\ngpu_options=2:1:1:1000,4:1:1:1000,8:1:1:2000\n"));
	job.cpus_per_tres = cpus;
	job.mem_per_tres = memory;
	job.pn_min_memory = NO_VAL64;
	energy_gpu_plan(&job, 1000, &plan);
	length = energy_job_request(&job, 1000, &plan, bytes, sizeof(bytes) - 1);
	bytes[length] = '\0';
	CHECK(strstr(bytes, "\ngpu_options=2:1:16:2000,4:1:32:4000,8:1:64:8000\n"));
	job.cpus_per_tres = job.mem_per_tres = NULL;
	job.het_job_offset = 1;
	energy_gpu_plan(&job, 1000, &plan);
	length = energy_job_request(&job, 1000, &plan, bytes, sizeof(bytes) - 1);
	bytes[length] = '\0';
	CHECK(strstr(bytes, "\ngpu_refusal=it is a part of a heterogeneous job\n") && !strstr(bytes, "gpu_options"));
	_finish();
}

int main(void)
{
	RUN(test_ranges_and_lists_are_read_and_nothing_else);
	RUN(test_a_job_without_a_range_is_not_looked_at);
	RUN(test_only_the_digits_of_a_request_change);
	RUN(test_a_request_without_one_plain_number_is_refused);
	RUN(test_a_range_in_slurms_own_options_is_seen);
	RUN(test_time_follows_fewer_gpus_and_stays_for_more);
	RUN(test_every_partition_must_allow_the_longer_time);
	RUN(test_tasks_follow_gpus_or_nodes);
	RUN(test_gpus_of_a_task_and_tasks_of_a_gpu_give_the_number_of_tasks);
	RUN(test_tasks_that_follow_nothing_are_refused);
	RUN(test_with_an_open_number_of_nodes_only_fewer_gpus_are_offered);
	RUN(test_gpus_by_job_and_by_node_need_a_number_of_nodes);
	RUN(test_memory_of_a_node_grows_with_its_gpus_and_never_shrinks);
	RUN(test_what_is_asked_for_each_task_and_gpu_is_counted_for_the_nodes);
	RUN(test_memory_by_cpu_keeps_more_gpus_out_where_they_need_more_cpus);
	RUN(test_where_slurm_gives_cpus_or_memory_by_gpu_no_more_are_offered);
	RUN(test_what_ties_a_job_to_its_form_is_refused_with_the_reason);
	RUN(test_what_a_job_says_of_cores_and_the_place_of_nodes_is_refused);
	RUN(test_a_range_without_the_jobs_own_number_is_refused);
	RUN(test_limits_of_account_and_qos_keep_the_number_where_they_could_break);
	RUN(test_where_slurm_chooses_the_qos_no_other_number_is_offered);
	RUN(test_numbers_that_are_written_out_in_a_script_are_found);
	RUN(test_without_memory_the_job_is_as_it_was);
	RUN(test_an_answer_that_was_not_offered_changes_nothing_at_all);
	RUN(test_the_request_tells_what_is_offered);
	return 0;
}
