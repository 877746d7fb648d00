/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "release.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

#define MAX_LIBRARIES 4096

/* No plugin of Slurm is called so, and most of what a process has loaded is: their symbols need not be searched. */
static bool _is_system_library(const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;

	return !strncmp(name, "lib", 3) || !strncmp(name, "ld-", 3) || !strncmp(name, "linux-vdso", 10);
}

/* libslurm's API number of releases whose sbatch loads no plugin before SPANK; from 23.02 on, one is there. */
#define API_MAJOR_OF_22_05 38

/* The number of a plugin that Slurm has checked to the last digit, 0 for anything else. */
static uint32_t _checked_number(const char *path, const uint32_t *own)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	const uint32_t *version;
	const char *type;
	uint32_t number = 0;

	if (!library)
		return 0;
	version = dlsym(library, "plugin_version");
	type = dlsym(library, "plugin_type");
	/* SPANK plugins may have another micro number than Slurm; of what is not Slurm's, the name is chance. */
	if (version && type && (version != own) && strchr(type, '/') &&
	    strcmp(type, "job_submit/energy"))
		number = *version & 0xffffff;
	dlclose(library);
	return number;
}

/* Major and minor of libslurm where they are known to be of a release without any plugin, 0 otherwise. */
static uint32_t _number_of_libslurm(void)
{
	long (*api_version)(void) = NULL;

	*(void **) &api_version = dlsym(RTLD_DEFAULT, "slurm_api_version");
	return api_version && ((api_version() >> 16 & 0xff) == API_MAJOR_OF_22_05) ? 0x160500 : 0;
}

extern uint32_t energy_running_release(const uint32_t *own, uint32_t otherwise)
{
	void *program = dlopen(NULL, RTLD_LAZY | RTLD_NOLOAD);
	struct link_map *library = NULL;
	uint32_t number = 0;

	if (program && !dlinfo(program, RTLD_DI_LINKMAP, &library)) {
		for (int i = 0; library && !number && (i < MAX_LIBRARIES); i++) {
			if (library->l_name && strstr(library->l_name, ".so") && !_is_system_library(library->l_name))
				number = _checked_number(library->l_name, own);
			library = library->l_next;
		}
	}
	if (program)
		dlclose(program);
	if (number)
		return number;
	number = _number_of_libslurm();
	return !number || ENERGY_SAME_LAYOUT(number, otherwise) ? otherwise : number;
}
