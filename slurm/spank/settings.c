/* spool=FOLDER: the run folders, as NCCL_SLURM_SPOOL in capture.conf. conf=FILE: the hooks' capture.conf. %h in them is
 * the host's name up to the first dot, as in SlurmdSpoolDir (slurm.conf(5)). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nccl_slurm.h"

#define SPOOL "spool="
#define CONF "conf="

static const char DEFAULT_SPOOL[] = "/var/spool/nccl-slurm";
static const char DEFAULT_CONF[] = "/etc/nccl-slurm/capture.conf";

/* Up to the first dot. */
static bool read_host(char *host, size_t size)
{
    if (gethostname(host, size - 1) != 0)
        return false;
    host[size - 1] = '\0';
    host[strcspn(host, ".")] = '\0';
    return true;
}

static bool expand(char *into, size_t size, const char *text, const char *host)
{
    size_t used = 0;

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

/* As the hooks do in name_mark. */
static void name_mark(char mark[MARK_BYTES], const char *conf, const char *host)
{
    char *place = mark + strlen("/run/");

    snprintf(mark, MARK_BYTES, "/run/nccl-slurm%s.%s", conf, host);
    while ((place = strchr(place, '/')) != NULL)
        *place = '-';
}

/* What follows key in one of the arguments, the last one; else what it is by default. */
static const char *given(const char *key, const char *otherwise, int count, char **arguments)
{
    size_t length = strlen(key);
    int number;

    for (number = 0; number < count; number++) {
        if (strncmp(arguments[number], key, length) == 0)
            otherwise = arguments[number] + length;
    }
    return otherwise;
}

static bool known(int count, char **arguments)
{
    int number;

    for (number = 0; number < count; number++) {
        if (strncmp(arguments[number], SPOOL, sizeof(SPOOL) - 1) != 0
            && strncmp(arguments[number], CONF, sizeof(CONF) - 1) != 0) {
            slurm_error(SAY "plugstack.conf: %s: no such argument; the plugin does nothing", arguments[number]);
            return false;
        }
    }
    return true;
}

static bool is_path(char *into, size_t size, const char *key, const char *text, const char *host)
{
    if (text[0] == '/' && expand(into, size, text, host))
        return true;
    slurm_error(SAY "plugstack.conf: %s%s: no full path, or more than %%h in it; the plugin does nothing", key, text);
    return false;
}

void read_settings(struct settings *settings, int count, char **arguments)
{
    char host[HOST_NAME_MAX + 1], conf[PATH_MAX];
    const char *spool = given(SPOOL, DEFAULT_SPOOL, count, arguments);

    settings->good = known(count, arguments) && read_host(host, sizeof(host))
        && is_path(settings->spool, sizeof(settings->spool), SPOOL, spool, host)
        && is_path(conf, sizeof(conf), CONF, given(CONF, DEFAULT_CONF, count, arguments), host);
    if (settings->good)
        name_mark(settings->mark, conf, host);
}
