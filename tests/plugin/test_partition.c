/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Partitions: which answers are put before a job's own partitions. */
#include "check.h"
#include "fake_partitions.h"
#include "fake_slurm.h"
#include "job_submit_energy/job.h"
#include "job_submit_energy/partition.h"
#include "job_submit_energy/slurm_memory.h"

static const char *const names[] = { "a100", "a40", "v100" };
static job_desc_msg_t job;
static char why[200];

static void _begin(const char *partition)
{
	fake_partitions(names, 3);
	fake_slurm_empty_job(&job);
	job.time_limit = 5;
	job.min_nodes = 1;
	job.min_cpus = 1;
	job.pn_min_memory = 1000;
	if (partition)
		job.partition = fake_slurm_string(partition);
}

/* Whether the answer says that named partitions are a preference. */
static bool opens;

/* The partitions after an answer. */
static const char *_after(const char *answer, energy_applied_t expected)
{
	static char result[512];

	why[0] = '\0';
	CHECK(energy_job_partition(&job, 1000, answer, opens, why, sizeof(why)) == expected);
	CHECK(!job.partition || fake_slurm_owns(job.partition));
	snprintf(result, sizeof(result), "%s", job.partition ? job.partition : "none");
	slurm_xfree((void **) &job.partition);
	return result;
}

#define APPLIED(own, answer, result)                             \
	do {                                                     \
		_begin(own);                                     \
		CHECK_TEXT(_after(answer, ENERGY_APPLIED), result); \
	} while (0)

static void test_an_answer_goes_before_the_users_list_of_which_none_is_taken_away(void)
{
	APPLIED("a100,a40", "a40", "a40,a100");
	APPLIED("a100,a40,v100", "v100,a40", "v100,a40,a100");
	APPLIED("a100,a40", "a100", "a100,a40");
	APPLIED("a100,a40", "a40,a100", "a40,a100");
	APPLIED("a100,a100,a40", "a40", "a40,a100");
	APPLIED("a100", "a100", "a100");
}

static void test_a_job_that_named_none_keeps_its_default_partition(void)
{
	APPLIED(NULL, "a40", "a40,a100");
	APPLIED("", "a40", "a40,a100");
	APPLIED(NULL, "a40,v100", "a40,v100,a100");
	APPLIED(NULL, "a100", "none");
	_begin(NULL);
	fake_default_partition(NULL);
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "none");
}

static void test_a_partition_that_the_user_did_not_list_is_not_added(void)
{
	_begin("a100");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_FOREIGN), "a100");
	_begin("a100,a40");
	CHECK_TEXT(_after("a40,v100", ENERGY_APPLIED_BUT_FOREIGN), "a100,a40");
	_begin("a100,a40");
	CHECK_TEXT(_after("a4", ENERGY_APPLIED_BUT_FOREIGN), "a100,a40");
	_begin(",");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), ",");
}

static void test_a_name_that_slurmctld_does_not_have_changes_nothing(void)
{
	_begin(NULL);
	CHECK_TEXT(_after("nosuch", ENERGY_APPLIED_BUT_PARTITION), "none");
	_begin("a100,gone");
	CHECK_TEXT(_after("gone", ENERGY_APPLIED_BUT_PARTITION), "a100,gone");
	CHECK(strstr(why, "does not have"));
}

static void test_the_order_of_too_many_partitions_is_kept(void)
{
	static char many[33 * 16], names_of_many[33][16];
	const char *pointers[33];

	for (int i = 0; i < 33; i++) {
		snprintf(names_of_many[i], sizeof(names_of_many[i]), "p%02d", i);
		pointers[i] = names_of_many[i];
		sprintf(many + strlen(many), "%s%s", i ? "," : "", names_of_many[i]);
	}
	_begin(many);
	fake_partitions(pointers, 33);
	CHECK_TEXT(_after("p01", ENERGY_APPLIED_BUT_PARTITION), many);
	*strrchr(many, ',') = '\0';
	_begin(many);
	fake_partitions(pointers, 32);
	CHECK(!strncmp(_after("p01", ENERGY_APPLIED), "p01,p00,p02,", 12));
}

/* A change of one partition after which the order of a list with it is the user's alone. */
#define KEPT(change, reason)                                                          \
	do {                                                                          \
		_begin("a100,a40");                                                   \
		change;                                                               \
		CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "a100,a40"); \
		CHECK(strstr(why, reason));                                           \
	} while (0)

#define MOVED(change)                                                   \
	do {                                                            \
		_begin("a100,a40");                                     \
		change;                                                 \
		CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100"); \
	} while (0)

static void test_a_partition_that_may_not_take_the_job_is_not_put_first(void)
{
	KEPT(fake_partition("a40")->state = PARTITION_DRAIN, "State");
	KEPT(fake_partition("a40")->state = PARTITION_INACTIVE, "State");
	KEPT(fake_partition("a40")->state = PARTITION_DOWN, "State");
	KEPT(fake_partition("a40")->allow_accounts = "physics", "AllowAccounts");
	KEPT(fake_partition("a40")->deny_accounts = "chemistry", "DenyAccounts");
	KEPT(fake_partition("a40")->allow_qos = "high", "AllowQos");
	KEPT(fake_partition("a40")->deny_qos = "low", "DenyQos");
	KEPT(fake_partition("a40")->max_time = 4, "MaxTime");
	KEPT(fake_partition("a40")->min_nodes = 2, "MinNodes");
	KEPT((fake_partition("a40")->max_nodes = 1, job.min_nodes = 2), "MaxNodes");
	KEPT((fake_partition("a40")->max_nodes = 1, job.max_nodes = 2), "MaxNodes");
	KEPT((fake_partition("a40")->total_nodes = 1, job.min_nodes = 2), "MaxNodes");
	KEPT((fake_partition("a40")->max_cpus_per_node = 4, job.cpus_per_task = 8), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_cpus_per_node = 4, job.min_cpus = 5), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_cpus_per_node = 4, job.pn_min_cpus = 5), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_cpus_per_node = 4, job.num_tasks = 5), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_cpus_per_node = 4, job.ntasks_per_node = 5), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->total_cpus = 4, job.num_tasks = 5), "MaxCPUsPerNode");
	KEPT(fake_partition("a40")->max_memory = 999, "MaxMemPerNode");
	KEPT(fake_partition("a40")->max_memory = 2000 | MEM_PER_CPU, "MaxMemPerNode");
}

/* What the job's own first partition cannot take is no reason against another; Slurm goes on in its list. */
static void test_a_partition_that_takes_the_job_is_put_before_one_that_does_not(void)
{
	MOVED(fake_partition("a100")->allow_accounts = "physics");
	MOVED(fake_partition("a100")->deny_qos = "low");
	MOVED(fake_partition("a100")->max_time = 4);
	MOVED(fake_partition("a100")->min_nodes = 2);
	MOVED((fake_partition("a100")->max_cpus_per_node = 4, job.cpus_per_task = 8));
	MOVED(fake_partition("a100")->max_memory = 999);
	_begin("a100,a40,v100");
	fake_partition("v100")->state = PARTITION_DRAIN;
	CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100,v100");
}

static void test_a_list_whose_order_could_matter_otherwise_is_kept(void)
{
	for (int i = 0; i < 3; i++) {
		const char *name = names[i];	/* the first of the user, that of the answer, and another */

#define KEPT_LIST(change, reason)                                                                  \
	do {                                                                                       \
		_begin("a100,a40,v100");                                                           \
		change;                                                                            \
		CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "a100,a40,v100");          \
		CHECK(strstr(why, reason));                                                        \
	} while (0)
		KEPT_LIST(fake_partition(name)->flags = PART_FLAG_ROOT_ONLY, "RootOnly");
		KEPT_LIST(fake_partition(name)->flags = PART_FLAG_REQ_RESV, "ReqResv");
		KEPT_LIST((fake_partition(name)->flags = PART_FLAG_NO_ROOT, job.user_id = 0),
			  "DisableRootJobs");
		KEPT_LIST(fake_partition(name)->allow_groups = "physics", "AllowGroups");
		KEPT_LIST(fake_partition(name)->allow_alloc_nodes = "login2", "AllocNodes");
		KEPT_LIST(fake_partition(name)->qos = "part", "QoS");
		KEPT_LIST((fake_partition(name)->max_memory = 2000, job.pn_min_memory = 10 | MEM_PER_CPU),
			  "MaxMemPerNode");
		KEPT_LIST((fake_partition(name)->max_memory = 2000, job.pn_min_memory = 0), "MaxMemPerNode");
		KEPT_LIST((fake_partition(name)->min_nodes = 1, job.min_nodes = NO_VAL), "MinNodes");
		if (i == 2)
			break;
		KEPT_LIST(fake_partition(name)->state = PARTITION_DRAIN, "State");
		KEPT_LIST((fake_partition(name)->default_memory = 4000, job.pn_min_memory = NO_VAL64),
			  "DefMemPerNode");
		KEPT_LIST((fake_partition(name)->default_time = 10, job.time_limit = NO_VAL), "DefaultTime");
		KEPT_LIST(fake_partition(name)->cpus_per_gpu = 4, "JobDefaults");
	}
}

static void test_a_difference_that_the_job_stays_inside_of_does_not_matter(void)
{
	for (int i = 0; i < 2; i++) {
		const char *name = names[i];

		MOVED(fake_partition(name)->max_time = 5);
		MOVED(fake_partition(name)->min_nodes = 1);
		MOVED(fake_partition(name)->max_nodes = 1);
		MOVED((fake_partition(name)->max_cpus_per_node = 8, job.cpus_per_task = 8));
		MOVED(fake_partition(name)->max_memory = 1000);
		MOVED(fake_partition(name)->default_memory = 4000);
		MOVED(fake_partition(name)->default_time = 10);
		MOVED(fake_partition(name)->allow_groups = "ALL");
		MOVED(fake_partition(name)->flags = PART_FLAG_DEFAULT | PART_FLAG_HIDDEN);
		MOVED(fake_partition(name)->max_share = 0);
		MOVED(fake_partition(name)->billing_weights = "CPU=2.0");
		MOVED(fake_partition(name)->nodes = "n[5-9]");
	}
}

static void test_a_limit_that_is_the_same_everywhere_cannot_matter_to_the_order(void)
{
	for (int i = 0; i < 2; i++) {
		char account[] = "biology";

		_begin("a100,a40");
		for (int k = 0; k < 2; k++) {
			fake_partition_t *partition = fake_partition(names[k]);

			partition->allow_groups = "physics,chemistry";
			partition->allow_accounts = "physics";
			partition->deny_accounts = "biology";
			partition->allow_qos = "high";
			partition->qos = "part";
			partition->allow_alloc_nodes = "login1";
			partition->max_memory = 10;
			partition->max_cpus_per_node = 1;
			partition->default_memory = 10;
			partition->cpus_per_gpu = 4;
			partition->default_time = 10;
			partition->min_nodes = 2;
		}
		job.account = account;
		job.time_limit = NO_VAL;
		job.min_nodes = NO_VAL;
		job.cpus_per_task = 4;
		job.pn_min_memory = i ? NO_VAL64 : 1000;
		CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100");
	}
}

static void test_an_account_or_qos_that_a_partition_lists_by_name_is_allowed(void)
{
	char name[] = "physics", part_of_name[] = "phys";

	MOVED((fake_partition("a40")->allow_accounts = "chemistry,physics", job.account = name));
	MOVED((fake_partition("a40")->allow_qos = "physics", job.qos = name));
	KEPT((fake_partition("a40")->allow_accounts = "chemistry,physics", job.account = part_of_name),
	     "AllowAccounts");
	KEPT((fake_partition("a40")->allow_qos = "physics", job.qos = part_of_name), "AllowQos");
}

static void test_cpus_that_are_counted_in_another_way_are_not_known(void)
{
	char text[] = "gres:gpu:4";

	KEPT((fake_partition("a40")->max_cpus_per_node = 64, job.cpus_per_tres = text), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_cpus_per_node = 64, job.threads_per_core = 1), "MaxCPUsPerNode");
	KEPT((fake_partition("a40")->max_memory = 64000, job.mem_per_tres = text), "MaxMemPerNode");
	MOVED(job.cpus_per_tres = text);
}

static void test_a_partition_of_lower_tier_cannot_be_put_first(void)
{
	KEPT(fake_partition("a100")->priority_tier = 2, "PriorityTier");
	KEPT(fake_partition("a100")->priority_job_factor = 2, "PriorityJobFactor");
	MOVED(fake_partition("a40")->priority_tier = 2);
}

static void test_a_partition_that_nobody_asked_for_treats_the_job_as_its_own_would(void)
{
#define NOT_ADDED(change, reason)                                              \
	do {                                                                   \
		_begin(NULL);                                                  \
		change;                                                        \
		CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "none"); \
		CHECK(strstr(why, reason));                                    \
	} while (0)
	for (int i = 0; i < 2; i++) {
		const char *name = names[i];

		NOT_ADDED(fake_partition(name)->state = PARTITION_DRAIN, "State");
		NOT_ADDED(fake_partition(name)->priority_tier = 2, "PriorityTier");
		NOT_ADDED(fake_partition(name)->min_nodes = 1, "MinNodes");
		NOT_ADDED(fake_partition(name)->max_nodes = 9, "MaxNodes");
		NOT_ADDED(fake_partition(name)->max_share = 0, "OverSubscribe");
		NOT_ADDED(fake_partition(name)->preempt_mode = 1, "PreemptMode");
		NOT_ADDED(fake_partition(name)->flags = PART_FLAG_EXCLUSIVE_USER, "ExclusiveUser");
	}
}

static void test_with_all_limits_enforced_the_last_partition_stays_the_last(void)
{
	KEPT(slurm_conf.enforce_part_limits = PARTITION_ENFORCE_ALL, "EnforcePartLimits");
	MOVED(slurm_conf.enforce_part_limits = PARTITION_ENFORCE_ANY);
	_begin("a100,a40,v100");
	slurm_conf.enforce_part_limits = PARTITION_ENFORCE_ALL;
	CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100,v100");
	_begin("a100,a40,v100");
	slurm_conf.enforce_part_limits = PARTITION_ENFORCE_ALL;
	fake_partition("v100")->max_time = 4;
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "a100,a40,v100");
	_begin(NULL);
	slurm_conf.enforce_part_limits = PARTITION_ENFORCE_ALL;
	CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100");
}

static void test_with_accounting_the_bill_and_the_association_are_the_same_everywhere(void)
{
	char database[] = "accounting_storage/slurmdbd", none[] = "accounting_storage/none";

	MOVED(slurm_conf.accounting_storage_type = database);
	KEPT((slurm_conf.accounting_storage_type = database,
	      fake_partition("a40")->billing_weights = "CPU=2.0"), "TRESBillingWeights");
	KEPT((slurm_conf.accounting_storage_type = database,
	      fake_partition("a40")->has_association = true), "association");
	KEPT((slurm_conf.accounting_storage_type = database,
	      fake_partition("a100")->has_association = true), "association");
	MOVED((slurm_conf.accounting_storage_type = none, fake_partition("a40")->has_association = true));
}

static void test_a_job_that_is_tied_to_nodes_or_to_an_order_of_its_own_is_left_alone(void)
{
	char text[] = "x";
	char **texts[] = {
		&job.req_nodes, &job.exc_nodes, &job.reservation, &job.array_inx, &job.burst_buffer,
		&job.clusters, &job.cluster_features, &job.mcs_label,
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		KEPT(*texts[i] = text, "tied");
		*texts[i] = NULL;
	}
	KEPT(job.immediate = 1, "tied");
	KEPT(job.het_job_offset = 0, "tied");
	KEPT(job.time_min = 3, "tied");
	KEPT(job.contiguous = 1, "tied");
}

static void _says(const char *entry)
{
	job.spank_job_env = slurm_xcalloc(2, sizeof(char *), true, true, __FILE__, __LINE__, __func__);
	job.spank_job_env[0] = fake_slurm_string(entry);
	job.spank_job_env_size = 1;
}

static void _forget(void)
{
	slurm_xfree((void **) &job.spank_job_env[0]);
	slurm_xfree((void **) &job.spank_job_env);
	job.spank_job_env_size = 0;
}

static void test_a_named_partition_that_is_left_open_keeps_its_place_behind_the_answer(void)
{
	opens = true;
	_begin("a100");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100");
	_begin("a100");
	_says("ENERGY_OPEN=on");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED), "a40,a100");
	_forget();
	/* Whoever answers, the user's own no counts, and so does what cannot be read. */
	_begin("a100");
	_says("ENERGY_OPEN=off");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_FOREIGN), "a100");
	_forget();
	_begin("a100");
	_says("ENERGY_OPEN=maybe");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_FOREIGN), "a100");
	_forget();
	opens = false;
	/* Nor does his yes open what the daemon left closed. */
	_begin("a100");
	_says("ENERGY_OPEN=on");
	CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_FOREIGN), "a100");
	_forget();
}

static void test_without_memory_the_order_is_kept(void)
{
	for (int count = 0; count < 4; count++) {
		energy_applied_t applied;

		_begin("a100,a40");
		fake_slurm_memory(count);
		applied = energy_job_partition(&job, 1000, "a40", false, why, sizeof(why));
		fake_slurm_memory(-1);
		CHECK(((applied == ENERGY_APPLIED) ? 3 : count) == count);
		CHECK_TEXT(job.partition, (applied == ENERGY_APPLIED) ? "a40,a100" : "a100,a40");
		slurm_xfree((void **) &job.partition);
	}
}

static void test_a_record_of_another_form_is_not_read(void)
{
	for (int bytes = -12; bytes <= 12; bytes++) {
		if (!bytes)
			continue;
		_begin("a100,a40");
		fake_packing_error(bytes);
		CHECK_TEXT(_after("a40", ENERGY_APPLIED_BUT_PARTITION), "a100,a40");
		fake_packing_error(0);
	}
}

static void test_a_record_larger_than_what_is_read_is_not_read(void)
{
	static char nodes[70000];

	memset(nodes, 'n', sizeof(nodes) - 1);
	KEPT(fake_partition("a40")->nodes = nodes, "does not have");
}

int main(void)
{
	RUN(test_an_answer_goes_before_the_users_list_of_which_none_is_taken_away);
	RUN(test_a_job_that_named_none_keeps_its_default_partition);
	RUN(test_a_partition_that_the_user_did_not_list_is_not_added);
	RUN(test_a_name_that_slurmctld_does_not_have_changes_nothing);
	RUN(test_the_order_of_too_many_partitions_is_kept);
	RUN(test_a_partition_that_may_not_take_the_job_is_not_put_first);
	RUN(test_a_partition_that_takes_the_job_is_put_before_one_that_does_not);
	RUN(test_a_list_whose_order_could_matter_otherwise_is_kept);
	RUN(test_a_difference_that_the_job_stays_inside_of_does_not_matter);
	RUN(test_a_limit_that_is_the_same_everywhere_cannot_matter_to_the_order);
	RUN(test_an_account_or_qos_that_a_partition_lists_by_name_is_allowed);
	RUN(test_cpus_that_are_counted_in_another_way_are_not_known);
	RUN(test_a_partition_of_lower_tier_cannot_be_put_first);
	RUN(test_a_partition_that_nobody_asked_for_treats_the_job_as_its_own_would);
	RUN(test_with_all_limits_enforced_the_last_partition_stays_the_last);
	RUN(test_with_accounting_the_bill_and_the_association_are_the_same_everywhere);
	RUN(test_a_job_that_is_tied_to_nodes_or_to_an_order_of_its_own_is_left_alone);
	RUN(test_a_named_partition_that_is_left_open_keeps_its_place_behind_the_answer);
	RUN(test_without_memory_the_order_is_kept);
	RUN(test_a_record_of_another_form_is_not_read);
	RUN(test_a_record_larger_than_what_is_read_is_not_read);
	return 0;
}
