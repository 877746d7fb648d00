/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Values that people may give, and names that only a forger gives. */
#include "check.h"
#include "common/options.h"

#define FOR_ALL(list) for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++)

static void test_only_the_four_modes_are_modes(void)
{
	CHECK(energy_is_mode("off") && energy_is_mode("observe") && energy_is_mode("balanced") &&
	      energy_is_mode("saver"));
	CHECK(!energy_is_mode("") && !energy_is_mode("OFF") && !energy_is_mode("saver ") &&
	      !energy_is_mode("max"));
}

static void test_slowdowns_from_0_to_200_percent_are_taken(void)
{
	static const struct {
		const char *text, *number;
	} good[] = {
		{ "0", "0" }, { "5", "5" }, { "7.5", "7.5" }, { "5%", "5" }, { "12.25%", "12.25" },
		{ "200", "200" }, { "200.000", "200.000" }, { "007", "007" },
	};
	static const char *const bad[] = {
		"", "%", "-1", "+5", " 5", "5 ", "5%%", "201", "200.001", "1000", "1e2", "5.", ".5",
		"5,5", "0x10", "nan", "inf", "5.1234567", "five",
	};
	char number[ENERGY_OPTION_BYTES];

	FOR_ALL(good) {
		CHECK(energy_is_slowdown(good[i].text, number));
		CHECK_TEXT(number, good[i].number);
	}
	FOR_ALL(bad)
		CHECK(!energy_is_slowdown(bad[i], number));
}

static void test_the_time_forms_of_sbatch_are_taken(void)
{
	static const char *const good[] = {
		"18:00", "18:00:30", "9:30PM", "09:30am", "2026-03-01", "2026-03-01T08:00",
		"2026-03-01T08:00:59", "0301", "030127", "03/01", "03/01/27", "03.01.27",
		"03/01-08:00", "03/01/27-08:00:00", "now+60", "now+2hours", "now+1day",
		"now+30minutes", "NOW+1week", "now+5seconds", "tomorrow", "today", "noon",
		"midnight", "teatime", "fika", "now", "2020-01-01", "@1772352000",
	};
	static const char *const bad[] = {
		"", "whenever", "24:00", "18:00PM", "0:30AM", "2027-02-29", "0231", "@", "@-1", "@1x",
		"@123456789012", "18:60", "18:00:60", "18", "1", "2026-13-01", "2026-00-10",
		"2026-03-32", "2026-03-01 08:00", "2026-03-01T", "2026-03-01T25:00", "1899-01-01",
		"1301", "0332", "03/01/", "03/01.27", "now+", "now-1hour", "now+1fortnight",
		"now+hours", "now+1.5hours", "now+9999999999", "now +1", "18:00;id", "$(id)",
		"18:00\n", "tomorrowx",
		"now+00000000000000000000000000000000000000000000000000000000000000000001",
	};

	FOR_ALL(good) {
		if (!energy_is_deadline(good[i])) {
			fprintf(stderr, "not taken: %s\n", good[i]);
			exit(1);
		}
	}
	FOR_ALL(bad) {
		if (energy_is_deadline(bad[i])) {
			fprintf(stderr, "taken: %s\n", bad[i]);
			exit(1);
		}
	}
}

/* 2026-03-01 12:00:00 in Berlin. */
#define NOON ((time_t) 1772362800)

static void test_a_deadline_is_read_by_the_hosts_own_clock(void)
{
	static const struct {
		const char *text;
		time_t ahead;
	} good[] = {
		{ "18:00", 6 * 3600 }, { "6:00PM", 6 * 3600 }, { "12:00", 24 * 3600 },
		{ "12:00:01", 1 }, { "12:30am", 12 * 3600 + 1800 }, { "noon", 24 * 3600 },
		{ "midnight", 12 * 3600 }, { "teatime", 4 * 3600 }, { "fika", 3 * 3600 },
		{ "tomorrow", 12 * 3600 }, { "2026-03-02", 12 * 3600 },
		{ "2026-03-01T12:00:10", 10 }, { "0302", 12 * 3600 }, { "03/02/26-01:00", 13 * 3600 },
		{ "03.02", 12 * 3600 }, { "0228", 364 * 86400 - 43200 }, { "now+1", 1 },
		{ "now+2hours", 7200 }, { "NOW+1Day", 86400 }, { "now+1weeks", 604800 },
		{ "2026-03-29T12:00", 28 * 86400 - 3600 }, { "@1772362801", 1 },
	};
	time_t seconds;

	setenv("TZ", "Europe/Berlin", 1);
	tzset();
	FOR_ALL(good) {
		if ((energy_deadline(good[i].text, NOON, &seconds) != ENERGY_DEADLINE_AHEAD) ||
		    (seconds - NOON != good[i].ahead)) {
			fprintf(stderr, "%s: %lld s\n", good[i].text, (long long) (seconds - NOON));
			exit(1);
		}
	}
}

static void test_a_deadline_that_has_passed_or_is_far_away_is_told_apart(void)
{
	static const char *const passed[] = {
		"now", "today", "now+0", "2020-01-01", "2026-03-01", "2026-03-01T11:59:59",
		"2026-03-01T12:00", "0301", "03/01-08:00", "03/01/25", "@1772362800", "@0",
	};
	time_t seconds;

	FOR_ALL(passed) {
		if (energy_deadline(passed[i], NOON, &seconds) != ENERGY_DEADLINE_PASSED) {
			fprintf(stderr, "not passed: %s\n", passed[i]);
			exit(1);
		}
	}
	CHECK(energy_deadline("2099-01-01", NOON, &seconds) == ENERGY_DEADLINE_TOO_FAR);
	CHECK(energy_deadline("now+999999999weeks", NOON, &seconds) == ENERGY_DEADLINE_TOO_FAR);
	CHECK(energy_deadline("18", NOON, &seconds) == ENERGY_DEADLINE_NO_TIME);
}

static void test_decision_entries_are_known_in_any_spelling(void)
{
	static const char *const forged[] = {
		"ENERGY_DECISION=v=1", "ENERGY_DECISION", "ENERGY_DECISION=", "energy_decision=x",
		" ENERGY_DECISION=x", "ENERGY_DECISION =x", "\tENERGY_DECISION\n=x",
		"SPANK_ENERGY_DECISION=x", "SPANK_SPANK_ENERGY_DECISION=x",
		"SLURM_SPANK_ENERGY_DECISION=x", "_SLURM_SPANK_ENERGY_DECISION=x",
		"Spank_Energy_Decision=x", "X\nSPANK_ENERGY_DECISION=x", "\nENERGY_DECISION=x",
		"ENERGY_DECISION\nX=x",
	};
	static const char *const others[] = {
		"", "=", "=ENERGY_DECISION", "ENERGY_MODE=saver", "MY_ENERGY_DECISION=x",
		"ENERGY_DECISIONS=x", "ENERGY_DECISIO=x", "X=ENERGY_DECISION=x", "SPANK_",
		"_SLURM_SPANK_OPTION_energy_energy=saver",
	};

	FOR_ALL(forged) {
		if (!energy_is_decision_entry(forged[i])) {
			fprintf(stderr, "let through: %s\n", forged[i]);
			exit(1);
		}
	}
	FOR_ALL(others)
		CHECK(!energy_is_decision_entry(others[i]));
}

static void test_a_megabyte_of_newlines_is_looked_at_once(void)
{
	size_t length = 1 << 20;
	char *entry = malloc(length + 1);

	memset(entry, '\n', length);
	entry[length] = '\0';
	CHECK(!energy_is_decision_entry(entry));
	memset(entry, ' ', length);
	CHECK(!energy_is_decision_entry(entry));
	free(entry);
}

int main(void)
{
	RUN(test_only_the_four_modes_are_modes);
	RUN(test_slowdowns_from_0_to_200_percent_are_taken);
	RUN(test_the_time_forms_of_sbatch_are_taken);
	RUN(test_a_deadline_is_read_by_the_hosts_own_clock);
	RUN(test_a_deadline_that_has_passed_or_is_far_away_is_told_apart);
	RUN(test_decision_entries_are_known_in_any_spelling);
	RUN(test_a_megabyte_of_newlines_is_looked_at_once);
	return 0;
}
