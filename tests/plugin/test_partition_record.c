/* SPDX-License-Identifier: GPL-2.0-or-later */
/* slurmctld's records of partitions: each release in its own form, nothing beyond the bytes, and no other release. */
#include "check.h"
#include "fake_partitions.h"
#include "job_submit_energy/partition.h"

static const char *const names[] = { "a40" };

static void test_every_release_is_read_in_its_own_form_and_no_other(void)
{
	static const uint16_t protocols[] = { 38 << 8, 39 << 8, 41 << 8, 43 << 8, 45 << 8 };
	char bytes[4096];

	fake_partitions(names, 1);
	*fake_partition("a40") = (fake_partition_t) {
		.name = "a40", .max_time = 1, .default_time = 2, .max_nodes = 3, .min_nodes = 4,
		.total_nodes = 5, .total_cpus = 6, .max_cpus_per_node = 7, .max_cpus_per_socket = 8,
		.flags = 9, .default_memory = 10, .max_memory = 11, .max_share = 12, .preempt_mode = 13,
		.priority_job_factor = 14, .priority_tier = 15, .state = 3, .allow_accounts = "aa",
		.allow_groups = "ag", .allow_alloc_nodes = "an", .allow_qos = "aq", .qos = "q",
		.deny_accounts = "da", .deny_qos = "dq", .billing_weights = "bw", .cpus_per_gpu = 2,
	};
	for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++) {
		energy_partition_t read = { 0 };
		size_t length = fake_pack(fake_partition("a40"), protocols[i], bytes, sizeof(bytes));

		CHECK(energy_partition_unpack(bytes, length, protocols[i], &read));
		CHECK_TEXT(read.name.bytes, "a40");
		CHECK((read.max_time == 1) && (read.default_time == 2) && (read.max_nodes == 3));
		CHECK((read.min_nodes == 4) && (read.total_nodes == 5) && (read.total_cpus == 6));
		CHECK(read.max_cpus_per_node == 7);
		CHECK(read.max_cpus_per_socket == ((protocols[i] == 38 << 8) ? INFINITE : 8));
		CHECK((read.flags == 9) && (read.default_memory == 10) && (read.max_memory == 11));
		CHECK((read.max_share == 12) && (read.preempt_mode == 13));
		CHECK((read.priority_job_factor == 14) && (read.priority_tier == 15) && (read.state == 3));
		CHECK_TEXT(read.allow_accounts.bytes, "aa");
		CHECK_TEXT(read.allow_groups.bytes, "ag");
		CHECK_TEXT(read.allow_alloc_nodes.bytes, "an");
		CHECK_TEXT(read.allow_qos.bytes, "aq");
		CHECK_TEXT(read.qos.bytes, "q");
		CHECK_TEXT(read.deny_accounts.bytes, "da");
		CHECK_TEXT(read.deny_qos.bytes, "dq");
		CHECK_TEXT(read.billing_weights.bytes, "bw");
		CHECK(read.job_defaults.length == 10);
		for (size_t k = 0; k < sizeof(protocols) / sizeof(protocols[0]); k++) {
			bool same_form = (k == i) || (k + i == 7);	/* 25.05 and 26.05 */

			CHECK(energy_partition_unpack(bytes, length, protocols[k], &read) == same_form);
		}
		for (size_t cut = 0; cut < length; cut++) {
			char *part = malloc(cut ? cut : 1);	/* AddressSanitizer sees a read behind it */

			memcpy(part, bytes, cut);
			CHECK(!energy_partition_unpack(part, cut, protocols[i], &read));
			free(part);
		}
		CHECK(!energy_partition_unpack(bytes, length, 0, &read));
		CHECK(!energy_partition_unpack(bytes, length, 46 << 8, &read));
	}
}

static void test_random_bytes_are_never_a_partition_and_never_read_beyond(void)
{
	char *bytes = malloc(512);

	srand(7);
	for (int i = 0; i < 200000; i++) {
		energy_partition_t read = { 0 };

		for (size_t k = 0; k < 512; k++)
			bytes[k] = (rand() % 3) ? 0 : (char) rand();
		CHECK(!energy_partition_unpack(bytes, 512, 38 << 8, &read));
	}
	free(bytes);
}

static void test_every_release_that_is_known_has_its_protocol(void)
{
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(22, 5, 8)) == 38 << 8);
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(23, 2, 0)) == 39 << 8);
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(24, 11, 5)) == 42 << 8);
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(26, 5, 5)) == 45 << 8);
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(26, 11, 0)) == 0);
	CHECK(energy_partition_protocol(SLURM_VERSION_NUM(21, 8, 8)) == 0);
}

int main(void)
{
	RUN(test_every_release_is_read_in_its_own_form_and_no_other);
	RUN(test_random_bytes_are_never_a_partition_and_never_read_beyond);
	RUN(test_every_release_that_is_known_has_its_protocol);
	return 0;
}
