/* spool=FOLDER: the run folders, as NCCL_SLURM_SPOOL in capture.conf. %h in it is the host's name up to the first dot,
 * as in SlurmdSpoolDir (slurm.conf(5)). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_slurm.h"

static const char DEFAULT_SPOOL[] = "/var/spool/nccl-slurm";

static bool expand(char *into, size_t size, const char *text)
{
    char host[HOST_NAME_MAX + 1] = "";
    size_t used = 0;

    if (gethostname(host, sizeof(host) - 1) != 0)
        return false;
    host[strcspn(host, ".")] = '\0';
    for (; *text; text++) {
        const char *piece = *text == '%' ? host : text;
        size_t length = *text == '%' ? strlen(host) : 1;

        if (*text == '%' && *++text != 'h')
            return false;
        if (used + length >= size)
            return false;
        memcpy(into + used, piece, length);
        used += length;
    }
    into[used] = '\0';
    return true;
}

void read_settings(struct settings *settings, int count, char **arguments)
{
    static const char key[] = "spool=";
    const char *spool = DEFAULT_SPOOL;
    int number;

    settings->good = false;
    for (number = 0; number < count; number++) {
        if (strncmp(arguments[number], key, sizeof(key) - 1) != 0) {
            slurm_error(SAY "plugstack.conf: %s: no such argument; the plugin does nothing", arguments[number]);
            return;
        }
        spool = arguments[number] + sizeof(key) - 1;
    }
    if (spool[0] != '/' || !expand(settings->spool, sizeof(settings->spool), spool)) {
        slurm_error(SAY "plugstack.conf: spool=%s: no full path, or more than %%h in it; the plugin does nothing", spool);
        return;
    }
    settings->good = true;
}
