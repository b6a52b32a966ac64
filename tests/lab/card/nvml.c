/* A stand-in for libnvidia-ml.so.1: the C ABI that NVML clients call, answered from a profile file.
 *
 * Profile: one key=value a line, `0.name=...` for card 0. A key that is absent answers "not supported", as
 * a consumer card does for ECC. Faults: `err.SYMBOL=code`, `0.err.SYMBOL=code`, `0.lost=1`,
 * `sleep.SYMBOL=seconds`, `0.sleep.SYMBOL=seconds`.
 *
 * The library's own version is the end of its file name (libnvidia-ml.so.580.95.05) or `library=`, the
 * kernel module's is in /proc/driver/nvidia/version or `module=`; when they differ, init fails with code 18
 * as the real one does after an upgrade without a reboot. BRANCH (a driver branch, e.g. 535) leaves out what
 * that branch did not have yet.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef BRANCH
#define BRANCH 580
#endif

#define API __attribute__((visibility("default")))
#define PROFILE "/etc/eyas-lab/gpu.profile"
#define MODULE "/proc/driver/nvidia/version"
#define FABRIC_MANAGER "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
#define MAX_CARDS 16
#define MAX_KEYS 4096

typedef unsigned int U;
typedef unsigned long long Q;
typedef struct card { int index; } *D;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, LOST = 15, MISMATCH = 18, BAD_VERSION = 25, UNKNOWN = 999
};

static struct { char *key, *value; } keys[MAX_KEYS];
static int key_count, ready, card_count;
static char *text;
static struct card cards[MAX_CARDS];

/* ---- the profile ------------------------------------------------------------------------------------- */

static int load(void)
{
    const char *path = getenv("EYAS_LAB_GPU_PROFILE");
    FILE *f = fopen(path ? path : PROFILE, "r");
    size_t size = 1 << 18, length;
    if (!f)
        return DRIVER_NOT_LOADED;
    free(text);
    text = malloc(size);
    length = fread(text, 1, size - 1, f);
    fclose(f);
    text[length] = 0;
    key_count = 0;
    for (char *line = strtok(text, "\n"); line && key_count < MAX_KEYS; line = strtok(NULL, "\n")) {
        char *equals = strchr(line, '=');
        if (!equals || *line == '#')
            continue;
        *equals = 0;
        keys[key_count].key = line;
        keys[key_count++].value = equals + 1;
    }
    return OK;
}

/* The value of `key`, of card `i` unless negative; a later line wins. */
static const char *get(int i, const char *key)
{
    char full[160];
    if (i < 0)
        snprintf(full, sizeof full, "%s", key);
    else
        snprintf(full, sizeof full, "%d.%s", i, key);
    for (int k = key_count - 1; k >= 0; k--)
        if (!strcmp(keys[k].key, full))
            return keys[k].value;
    return NULL;
}

static int fault(int i, const char *symbol)
{
    char key[128];
    const char *value;
    snprintf(key, sizeof key, "sleep.%s", symbol);
    if ((value = get(i, key)))
        sleep(atoi(value));
    snprintf(key, sizeof key, "err.%s", symbol);
    return (value = get(i, key)) ? atoi(value) : OK;
}

/* What every call on a card asks first. */
static int enter(D d, const char *symbol)
{
    int code;
    if (!ready)
        return UNINITIALIZED;
    if (!d || d < cards || d >= cards + card_count)
        return INVALID_ARGUMENT;
    if (get(d->index, "lost"))
        return LOST;
    if ((code = fault(-1, symbol)) || (code = fault(d->index, symbol)))
        return code;
    return OK;
}

static int number(D d, const char *symbol, const char *key, Q *out)
{
    const char *value;
    int code = enter(d, symbol);
    if (code)
        return code;
    if (!out)
        return INVALID_ARGUMENT;
    if (!(value = get(d->index, key)))
        return NOT_SUPPORTED;
    *out = strtoull(value, NULL, 0);
    return OK;
}

static int number32(D d, const char *symbol, const char *key, U *out)
{
    Q wide = 0;
    int code = number(d, symbol, key, &wide);
    if (!code && !out)
        return INVALID_ARGUMENT;
    if (!code)
        *out = (U)wide;
    return code;
}

static int copy(const char *value, char *out, U size)
{
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

static int words(D d, const char *symbol, const char *key, char *out, U size)
{
    int code = enter(d, symbol);
    return code ? code : copy(get(d->index, key), out, size);
}

/* ---- the system -------------------------------------------------------------------------------------- */

/* First word of digits and dots with at least one dot. */
static int find_version(const char *line, char *out, size_t size)
{
    for (const char *p = line; *p; p++) {
        size_t n = strspn(p, "0123456789.");
        if (n >= 5 && n < size && memchr(p, '.', n)) {
            memcpy(out, p, n);
            out[n] = 0;
            return OK;
        }
        if (n)
            p += n - 1;
    }
    return NOT_FOUND;
}

static int module_version(char *out, size_t size)
{
    char line[512] = "";
    const char *given = get(-1, "module");
    FILE *f;
    if (given)
        return copy(given, out, size);
    if (!(f = fopen(MODULE, "r")))
        return DRIVER_NOT_LOADED;
    if (!fgets(line, sizeof line, f))
        line[0] = 0;
    fclose(f);
    return find_version(line, out, size) ? UNKNOWN : OK;
}

static int library_version(char *out, size_t size)
{
    Dl_info me;
    char path[PATH_MAX];
    const char *given = get(-1, "library"), *version;
    if (given)
        return copy(given, out, size);
    if (!dladdr((void *)library_version, &me) || !realpath(me.dli_fname, path))
        return UNKNOWN;
    version = strstr(path, ".so.");
    return version ? copy(version + 4, out, size) : UNKNOWN;
}

/* A sandbox that hides or denies the device nodes is seen here, as with the real library. */
static int node(const char *path)
{
    int fd;
    if (get(-1, "module"))
        return OK; /* not on a lab host */
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    else if (errno == EACCES || errno == EPERM)
        return NO_PERMISSION;
    else if (errno == ENOENT)
        return DRIVER_NOT_LOADED;
    return OK; /* no driver behind the node: ENXIO */
}

API int nvmlInitWithFlags(U flags)
{
    char module[80], library[80];
    int code;
    (void)flags;
    ready = 0;
    if ((code = load()) || (code = fault(-1, "nvmlInit")))
        return code;
    if ((code = module_version(module, sizeof module)) || (code = library_version(library, sizeof library)))
        return code;
    if (strcmp(module, library))
        return MISMATCH;
    if ((code = node("/dev/nvidiactl")))
        return code;
    card_count = get(-1, "count") ? atoi(get(-1, "count")) : 0;
    if (card_count > MAX_CARDS)
        card_count = MAX_CARDS;
    for (int i = 0; i < card_count; i++)
        cards[i].index = i;
    ready = 1;
    return OK;
}

API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API int nvmlInit(void) { return nvmlInitWithFlags(0); }

API int nvmlShutdown(void)
{
    int code = ready ? OK : UNINITIALIZED;
    ready = 0;
    return code;
}

API const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case 10: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case 13: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 17: return "The operating system has blocked the request.";
    case MISMATCH: return "Driver/library version mismatch";
    case BAD_VERSION: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API int nvmlSystemGetDriverVersion(char *out, U size)
{
    char version[80];
    int code = ready ? fault(-1, "nvmlSystemGetDriverVersion") : UNINITIALIZED;
    if (!code)
        code = module_version(version, sizeof version);
    return code ? code : copy(version, out, size);
}

API int nvmlSystemGetNVMLVersion(char *out, U size)
{
    char version[80], cuda[100];
    const char *value = get(-1, "cuda");
    int code = library_version(version, sizeof version);
    if (code)
        return code;
    snprintf(cuda, sizeof cuda, "%d.%s", value ? atoi(value) / 1000 : 0, version);
    return copy(cuda, out, size);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    const char *value = get(-1, "cuda");
    int code = ready ? fault(-1, "nvmlSystemGetCudaDriverVersion") : UNINITIALIZED;
    if (code)
        return code;
    if (!value)
        return NOT_SUPPORTED;
    *out = atoi(value);
    return OK;
}

API int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

API int nvmlSystemGetProcessName(U pid, char *out, U size)
{
    char key[40], path[40], line[1024] = "";
    FILE *f;
    if (!ready)
        return UNINITIALIZED;
    snprintf(key, sizeof key, "proc.%u", pid);
    if (get(-1, key))
        return copy(get(-1, key), out, size);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    if (!(f = fopen(path, "r")))
        return NOT_FOUND;
    if (!fgets(line, sizeof line, f))
        line[0] = 0;
    fclose(f);
    return copy(line, out, size);
}

/* ---- handles ----------------------------------------------------------------------------------------- */

API int nvmlDeviceGetCount_v2(U *out)
{
    int code = ready ? fault(-1, "nvmlDeviceGetCount") : UNINITIALIZED;
    if (!code)
        *out = (U)card_count;
    return code;
}

API int nvmlDeviceGetCount(U *out) { return nvmlDeviceGetCount_v2(out); }

API int nvmlDeviceGetHandleByIndex_v2(U index, D *out)
{
    char path[32];
    int code;
    if (!ready)
        return UNINITIALIZED;
    if (index >= (U)card_count)
        return INVALID_ARGUMENT;
    if ((code = enter(&cards[index], "nvmlDeviceGetHandleByIndex")))
        return code;
    snprintf(path, sizeof path, "/dev/nvidia%u", index);
    if ((code = node(path)))
        return code;
    *out = &cards[index];
    return OK;
}

API int nvmlDeviceGetHandleByIndex(U index, D *out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

static int find(const char *key, const char *wanted, D *out)
{
    if (!ready)
        return UNINITIALIZED;
    for (int i = 0; i < card_count; i++) {
        const char *value = get(i, key);
        if (value && wanted && !strcasecmp(value, wanted))
            return nvmlDeviceGetHandleByIndex_v2((U)i, out);
    }
    return NOT_FOUND;
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, D *out) { return find("uuid", uuid, out); }

API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, D *out)
{
    /* Both 0000:01:00.0 and 00000000:01:00.0 are the same card. */
    return find("pci", bus && strlen(bus) == 16 ? bus + 4 : bus, out);
}

API int nvmlDeviceGetIndex(D d, U *out)
{
    int code = enter(d, "nvmlDeviceGetIndex");
    if (!code)
        *out = (U)d->index;
    return code;
}

/* ---- plain values ------------------------------------------------------------------------------------ */

#define NUMBER(symbol, key) API int symbol(D d, U *out) { return number32(d, #symbol, key, out); }
#define WIDE(symbol, key) API int symbol(D d, Q *out) { return number(d, #symbol, key, out); }
#define WORDS(symbol, key) API int symbol(D d, char *out, U n) { return words(d, #symbol, key, out, n); }

WORDS(nvmlDeviceGetName, "name")
WORDS(nvmlDeviceGetUUID, "uuid")
WORDS(nvmlDeviceGetSerial, "serial")
WORDS(nvmlDeviceGetVbiosVersion, "vbios")
WORDS(nvmlDeviceGetBoardPartNumber, "board")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetPowerUsage, "power.draw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power.limit")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power.limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power.default")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetPerformanceState, "pstate")
NUMBER(nvmlDeviceGetFanSpeed, "fan")
NUMBER(nvmlDeviceGetDisplayActive, "display.active")
NUMBER(nvmlDeviceGetDisplayMode, "display.mode")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired.pending")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "mem.bus_width")
NUMBER(nvmlDeviceGetNumaNodeId, "numa")
WIDE(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")
WIDE(nvmlDeviceGetTotalEnergyConsumption, "energy")
#if BRANCH >= 535
WIDE(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
#endif
#if BRANCH >= 550
WORDS(nvmlDeviceGetGspFirmwareVersion, "gsp")
#endif

static int pair(D d, const char *symbol, const char *a, const char *b, U *first, U *second)
{
    int code = number32(d, symbol, a, first);
    return code ? code : number32(d, symbol, get(d->index, b) ? b : a, second);
}

API int nvmlDeviceGetEccMode(D d, U *now, U *next)
{
    return pair(d, "nvmlDeviceGetEccMode", "ecc", "ecc.pending", now, next);
}

API int nvmlDeviceGetMigMode(D d, U *now, U *next)
{
    return pair(d, "nvmlDeviceGetMigMode", "mig", "mig.pending", now, next);
}

API int nvmlDeviceGetPowerManagementLimitConstraints(D d, U *least, U *most)
{
    return pair(d, "nvmlDeviceGetPowerManagementLimitConstraints", "power.min", "power.max", least, most);
}

API int nvmlDeviceGetCudaComputeCapability(D d, int *major, int *minor)
{
    int code = enter(d, "nvmlDeviceGetCudaComputeCapability");
    const char *value = code ? NULL : get(d->index, "cc");
    if (code)
        return code;
    return value && sscanf(value, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

API int nvmlDeviceGetUtilizationRates(D d, U out[2])
{
    int code = number32(d, "nvmlDeviceGetUtilizationRates", "util.gpu", &out[0]);
    return code ? code : number32(d, "nvmlDeviceGetUtilizationRates", "util.memory", &out[1]);
}

API int nvmlDeviceGetTemperature(D d, U sensor, U *out)
{
    return sensor ? INVALID_ARGUMENT : number32(d, "nvmlDeviceGetTemperature", "temperature", out);
}

#if BRANCH >= 570
struct temperature { U version, sensor; int value; };

API int nvmlDeviceGetTemperatureV(D d, struct temperature *out)
{
    U value;
    int code;
    if (out->version != 0x100000c)
        return BAD_VERSION;
    code = number32(d, "nvmlDeviceGetTemperature", "temperature", &value);
    if (!code)
        out->value = (int)value;
    return code;
}
#endif

API int nvmlDeviceGetTemperatureThreshold(D d, U kind, U *out)
{
    const char *names[] = {"temperature.shutdown", "temperature.slowdown", "temperature.memory", "temperature.max"};
    return kind > 3 ? INVALID_ARGUMENT : number32(d, "nvmlDeviceGetTemperatureThreshold", names[kind], out);
}

static const char *clock_names[] = {"graphics", "sm", "mem", "video"};

static int clock_value(D d, const char *symbol, const char *prefix, U kind, U *out)
{
    char key[40];
    if (kind > 3)
        return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%s.%s", prefix, clock_names[kind]);
    return number32(d, symbol, key, out);
}

API int nvmlDeviceGetClockInfo(D d, U kind, U *out)
{
    return clock_value(d, "nvmlDeviceGetClockInfo", "clock", kind, out);
}

API int nvmlDeviceGetMaxClockInfo(D d, U kind, U *out)
{
    return clock_value(d, "nvmlDeviceGetMaxClockInfo", "clock_max", kind, out);
}

API int nvmlDeviceGetApplicationsClock(D d, U kind, U *out)
{
    return clock_value(d, "nvmlDeviceGetApplicationsClock", "clock_app", kind, out);
}

API int nvmlDeviceGetPcieThroughput(D d, U counter, U *out)
{
    return number32(d, "nvmlDeviceGetPcieThroughput", counter ? "pcie.rx" : "pcie.tx", out);
}

/* ---- memory and processes ---------------------------------------------------------------------------- */

struct memory1 { Q total, free, used; };
struct memory2 { U version; Q total, reserved, free, used; };

/* used = what the profile says plus what its processes hold. */
static int memory(D d, const char *symbol, struct memory2 *out)
{
    const char *value;
    int code = number(d, symbol, "mem.total", &out->total);
    if (code)
        return code;
    out->reserved = (value = get(d->index, "mem.reserved")) ? strtoull(value, NULL, 0) : 0;
    out->used = (value = get(d->index, "mem.used")) ? strtoull(value, NULL, 0) : 0;
    for (value = get(d->index, "procs"); value && (value = strchr(value, ':')); value++)
        out->used += strtoull(value + 1, NULL, 0);
    out->free = out->total > out->reserved + out->used ? out->total - out->reserved - out->used : 0;
    return OK;
}

API int nvmlDeviceGetMemoryInfo(D d, struct memory1 *out)
{
    struct memory2 all;
    int code = memory(d, "nvmlDeviceGetMemoryInfo", &all);
    if (code)
        return code;
    out->total = all.total;
    out->free = all.free;
    out->used = all.used + all.reserved; /* the first version counts what the driver reserves as used */
    return OK;
}

API int nvmlDeviceGetMemoryInfo_v2(D d, struct memory2 *out)
{
    return out->version == 0x02000028 ? memory(d, "nvmlDeviceGetMemoryInfo", out) : BAD_VERSION;
}

API int nvmlDeviceGetBAR1MemoryInfo(D d, struct memory1 *out)
{
    int code = number(d, "nvmlDeviceGetBAR1MemoryInfo", "bar1.total", &out->total);
    if (code)
        return code;
    if (number(d, "nvmlDeviceGetBAR1MemoryInfo", "bar1.used", &out->used))
        out->used = 0;
    out->free = out->total - out->used;
    return OK;
}

struct process { U pid; Q memory; U gpu_instance, compute_instance; };

/* A process of the profile that is a live pid of ours or a foreign one: both are listed. */
static int processes(D d, const char *symbol, const char *key, U *count, struct process *out)
{
    U room = *count, found = 0;
    int code = enter(d, symbol);
    const char *p = code ? NULL : get(d->index, key);
    if (code)
        return code;
    for (const char *q = p; q && *q; q = strchr(q, ',') ? strchr(q, ',') + 1 : NULL)
        found++;
    *count = found;
    if (!found)
        return OK;
    if (found > room || !out)
        return INSUFFICIENT_SIZE;
    for (U i = 0; i < found; i++) {
        unsigned pid = 0;
        Q bytes = ~0ULL;
        sscanf(p, "%u:%llu", &pid, &bytes);
        out[i] = (struct process){pid, bytes, ~0U, ~0U};
        p = strchr(p, ',') ? strchr(p, ',') + 1 : p;
    }
    return OK;
}

API int nvmlDeviceGetComputeRunningProcesses_v3(D d, U *count, struct process *out)
{
    return processes(d, "nvmlDeviceGetComputeRunningProcesses", "procs", count, out);
}

API int nvmlDeviceGetGraphicsRunningProcesses_v3(D d, U *count, struct process *out)
{
    return processes(d, "nvmlDeviceGetGraphicsRunningProcesses", "procs.graphics", count, out);
}

/* ---- health of the memory ---------------------------------------------------------------------------- */

API int nvmlDeviceGetTotalEccErrors(D d, U kind, U counter, Q *out)
{
    char key[48];
    int code = enter(d, "nvmlDeviceGetTotalEccErrors");
    const char *mode = code ? NULL : get(d->index, "ecc");
    if (code)
        return code;
    if (!mode || !atoi(mode))
        return NOT_SUPPORTED;
    snprintf(key, sizeof key, "ecc.%s.%s", counter ? "aggregate" : "volatile", kind ? "uncorrected" : "corrected");
    if (!get(d->index, key))
        return *out = 0, OK;
    return number(d, "nvmlDeviceGetTotalEccErrors", key, out);
}

API int nvmlDeviceGetMemoryErrorCounter(D d, U kind, U counter, U location, Q *out)
{
    (void)location;
    return nvmlDeviceGetTotalEccErrors(d, kind, counter, out);
}

/* `retired.0` (single-bit) and `retired.1` (double-bit): how many pages. */
API int nvmlDeviceGetRetiredPages(D d, U cause, U *count, Q *pages)
{
    char key[16];
    U room = *count, found;
    int code;
    snprintf(key, sizeof key, "retired.%u", cause);
    if ((code = number32(d, "nvmlDeviceGetRetiredPages", key, &found)))
        return code;
    *count = found;
    if (found && (!pages || room < found))
        return INSUFFICIENT_SIZE;
    for (U i = 0; pages && i < found; i++)
        pages[i] = 0x1000ULL * (i + 1);
    return OK;
}

API int nvmlDeviceGetRetiredPages_v2(D d, U cause, U *count, Q *pages, Q *times)
{
    int code = nvmlDeviceGetRetiredPages(d, cause, count, pages);
    for (U i = 0; !code && times && i < *count; i++)
        times[i] = 0;
    return code;
}

API int nvmlDeviceGetRemappedRows(D d, U *corrected, U *uncorrected, U *pending, U *failure)
{
    unsigned v[4];
    int code = enter(d, "nvmlDeviceGetRemappedRows");
    const char *value = code ? NULL : get(d->index, "remapped");
    if (code)
        return code;
    if (!value || sscanf(value, "%u,%u,%u,%u", &v[0], &v[1], &v[2], &v[3]) != 4)
        return NOT_SUPPORTED;
    *corrected = v[0], *uncorrected = v[1], *pending = v[2], *failure = v[3];
    return OK;
}

struct field { U id, scope; long long time, latency; int type, code; union { U u; Q q; double d; } value; };

API int nvmlDeviceGetFieldValues(D d, int count, struct field *out)
{
    int code = enter(d, "nvmlDeviceGetFieldValues");
    for (int i = 0; !code && i < count; i++) {
        char key[24];
        U value = 0;
        snprintf(key, sizeof key, "field.%u", out[i].id);
        out[i].code = number32(d, "nvmlDeviceGetFieldValues", key, &value);
        out[i].type = 1; /* unsigned int */
        out[i].value.u = value;
    }
    return code;
}

/* ---- the bus and the links --------------------------------------------------------------------------- */

struct pci { char legacy[16]; U domain, bus, device, device_id, subsystem_id; char id[32]; };

static int pci(const char *address, struct pci *out)
{
    unsigned domain, bus, device, function;
    if (!address || sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->domain = domain, out->bus = bus, out->device = device;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%X", domain & 0xffff, bus & 0xff, device & 0xff, function & 7);
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.%X", domain, bus & 0xff, device & 0xff, function & 7);
    return OK;
}

API int nvmlDeviceGetPciInfo_v3(D d, struct pci *out)
{
    int code = enter(d, "nvmlDeviceGetPciInfo");
    if (code || (code = pci(get(d->index, "pci"), out)))
        return code;
    number32(d, "nvmlDeviceGetPciInfo", "pci.device", &out->device_id);
    number32(d, "nvmlDeviceGetPciInfo", "pci.subsystem", &out->subsystem_id);
    return OK;
}

/* `nvlink` links are there, those named in `nvlink.down` (comma-separated) are not active. */
static int nvlink(D d, const char *symbol, U link)
{
    U count;
    int code = number32(d, symbol, "nvlink", &count);
    if (code)
        return code;
    return link < count ? OK : INVALID_ARGUMENT;
}

API int nvmlDeviceGetNvLinkState(D d, U link, U *out)
{
    int code = nvlink(d, "nvmlDeviceGetNvLinkState", link);
    if (code)
        return code;
    *out = 1;
    for (const char *p = get(d->index, "nvlink.down"); p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if ((U)atoi(p) == link)
            *out = 0;
    return OK;
}

API int nvmlDeviceGetNvLinkVersion(D d, U link, U *out)
{
    int code = nvlink(d, "nvmlDeviceGetNvLinkVersion", link);
    return code ? code : number32(d, "nvmlDeviceGetNvLinkVersion", "nvlink.version", out);
}

API int nvmlDeviceGetNvLinkErrorCounter(D d, U link, U counter, Q *out)
{
    int code = nvlink(d, "nvmlDeviceGetNvLinkErrorCounter", link);
    (void)counter;
    if (!code && number(d, "nvmlDeviceGetNvLinkErrorCounter", "nvlink.errors", out))
        *out = 0;
    return code;
}

API int nvmlDeviceGetNvLinkRemotePciInfo_v2(D d, U link, struct pci *out)
{
    int code = nvlink(d, "nvmlDeviceGetNvLinkRemotePciInfo", link);
    return code ? code : pci(get(d->index, "nvlink.remote"), out);
}

/* `p2p.1`: towards card 1; `p2p`: towards any other. The same for `topo`. */
static int towards(D d, D other, const char *symbol, const char *what, U *out)
{
    char key[24];
    int code = enter(d, symbol);
    if (code || (code = enter(other, symbol)))
        return code;
    snprintf(key, sizeof key, "%s.%d", what, other->index);
    return number32(d, symbol, get(d->index, key) ? key : what, out);
}

API int nvmlDeviceGetP2PStatus(D d, D other, U index, U *out)
{
    return towards(d, other, "nvmlDeviceGetP2PStatus", index == 2 ? "p2p.nvlink" : "p2p", out);
}

API int nvmlDeviceGetTopologyCommonAncestor(D d, D other, U *out)
{
    return towards(d, other, "nvmlDeviceGetTopologyCommonAncestor", "topo", out);
}

struct fabric1 { unsigned char cluster[16]; int status; U clique; unsigned char state; };
struct fabric3 {
    U version; unsigned char cluster[16]; int status; U clique; unsigned char state; U health; unsigned char summary;
};

/* `fabric=3` (completed) and so on; `fabric=auto` is completed once the fabric manager runs. */
static int fabric(D d, int *status, unsigned char *state)
{
    U value = 0;
    int code = enter(d, "nvmlDeviceGetGpuFabricInfo");
    const char *given = code ? NULL : get(d->index, "fabric");
    if (code)
        return code;
    if (!given)
        return NOT_SUPPORTED;
    *state = !strcmp(given, "auto") ? (access(FABRIC_MANAGER, F_OK) ? 2 : 3) : (unsigned char)atoi(given);
    *status = number32(d, "nvmlDeviceGetGpuFabricInfo", "fabric.status", &value) ? OK : (int)value;
    return OK;
}

API int nvmlDeviceGetGpuFabricInfo(D d, struct fabric1 *out)
{
    memset(out, 0, sizeof *out);
    return fabric(d, &out->status, &out->state);
}

#if BRANCH >= 550
API int nvmlDeviceGetGpuFabricInfoV(D d, struct fabric3 *out)
{
    if (out->version != 0x02000024 && (BRANCH < 570 || out->version != 0x03000028))
        return BAD_VERSION;
    memset(out->cluster, 0, sizeof out->cluster);
    out->clique = out->health = 0;
    if (out->version == 0x03000028)
        out->summary = 0;
    return fabric(d, &out->status, &out->state);
}
#endif
