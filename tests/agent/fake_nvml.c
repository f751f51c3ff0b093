/* A libnvidia-ml.so.1 without GPUs. Its state is a text file ($FAKE_NVML) read at each call, one word and values a line:
     error N                       nvmlInit fails with N
     gpu I NAME|TOTAL|USED|UTIL|ECC|MIG|LOST
     process I PID BYTES
   XID events come as lines "I XID" through the FIFO $FAKE_NVML.events. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER = 9, TIMEOUT = 10, LOST = 15 };
typedef struct { int index; } device;
typedef struct { char name[64]; unsigned long long total, used, ecc; unsigned util, mig, lost; int there; } gpu;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct { device *dev; unsigned long long type, data; unsigned gi, ci; } event;

static device devices[16];
static int events = -1;

static FILE *state(void) { return fopen(getenv("FAKE_NVML"), "r"); }

static int failure(void) {
    char line[256];
    int error = OK;
    FILE *file = state();
    if (!file) return DRIVER;
    while (fgets(line, sizeof line, file)) sscanf(line, "error %d", &error);
    fclose(file);
    return error;
}

static gpu look(int index) {
    char line[256];
    gpu found = {0};
    FILE *file = state();
    while (file && fgets(line, sizeof line, file)) {
        int i;
        gpu g = {0};
        if (sscanf(line, "gpu %d %63[^|]|%llu|%llu|%u|%llu|%u|%u", &i, g.name, &g.total, &g.used, &g.util, &g.ecc, &g.mig,
                   &g.lost) == 8 && i == index) { found = g; found.there = 1; }
    }
    if (file) fclose(file);
    return found;
}

#define LOOK(d) gpu g = look((d)->index); if (!g.there || g.lost) return LOST

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (int i = 0; i < 16; i++) devices[i].index = i;
    return failure();
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == DRIVER ? "Driver Not Loaded" : "fake error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.00"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { for (*count = 0; look(*count).there; ++*count) {} return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **out) {
    if (!look(index).there) return INVALID;
    *out = &devices[index];
    return OK;
}
int nvmlDeviceGetName(device *d, char *text, unsigned size) { LOOK(d); snprintf(text, size, "%s", g.name); return OK; }
int nvmlDeviceGetUUID(device *d, char *text, unsigned size) {
    snprintf(text, size, "GPU-00000000-0000-0000-0000-%012d", d->index);
    return OK;
}
int nvmlDeviceGetMemoryInfo(device *d, memory *m) {
    LOOK(d);
    m->total = g.total; m->used = g.used; m->free = g.total - g.used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(device *d, utilization *u) { LOOK(d); u->gpu = g.util; u->memory = 0; return OK; }
int nvmlDeviceGetTotalEccErrors(device *d, unsigned type, unsigned counter, unsigned long long *count) {
    LOOK(d);
    if (type != 1 || counter != 0) return NOT_SUPPORTED;
    *count = g.ecc;
    return OK;
}
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
    LOOK(d);
    if (g.mig == 2) return NOT_SUPPORTED;
    *current = *pending = g.mig;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *count, process *out) {
    LOOK(d);
    char line[256];
    unsigned room = out ? *count : 0, found = 0;
    FILE *file = state();
    while (file && fgets(line, sizeof line, file)) {
        int i;
        process p = {0};
        if (sscanf(line, "process %d %u %llu", &i, &p.pid, &p.used) == 3 && i == d->index) {
            if (found < room) out[found] = p;
            found++;
        }
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
int nvmlEventSetCreate(void **set) {
    char path[512];
    snprintf(path, sizeof path, "%s.events", getenv("FAKE_NVML"));
    events = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    *set = &events;
    return events < 0 ? NOT_SUPPORTED : OK;
}
int nvmlEventSetFree(void *set) { (void)set; close(events); return OK; }
int nvmlDeviceRegisterEvents(device *d, unsigned long long types, void *set) { (void)set; LOOK(d); return types == 8 ? OK : INVALID; }
int nvmlEventSetWait_v2(void *set, event *out, unsigned timeout_ms) {
    struct pollfd ready = {events, POLLIN, 0};
    char line[64] = "";
    int i;
    unsigned long long xid;
    (void)set;
    if (poll(&ready, 1, timeout_ms) <= 0) return TIMEOUT;
    for (unsigned n = 0; n < sizeof line - 1 && read(events, line + n, 1) == 1 && line[n] != '\n'; n++) {}
    if (sscanf(line, "%d %llu", &i, &xid) != 2) return TIMEOUT;
    memset(out, 0, sizeof *out);
    out->dev = &devices[i]; out->type = 8; out->data = xid;
    return OK;
}
