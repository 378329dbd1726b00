/* A libnvidia-ml.so.1 whose GPUs are lines of a text file, for tests that load the real binding.
 *
 * $LAB_GPU_STUB_NVML/gpus holds one line per thing, its fields set apart by tabs:
 *   driver  [error=CODE] [old=1]
 *   gpu     uuid= name= total_mib= [used_mib= reserved_mib= util= temp= power_mw= mode= mig= error= quiet= unified=]
 *   mig     gpu=INDEX slot= uuid= name= total_mib= [used_mib=]
 *   process gpu=INDEX [slot=] pid= [mib=] [kind=C|G]       without mib= the driver does not tell
 * $LAB_GPU_STUB_NVML/processes/<anything> holds more process lines, each listed only while its pid lives, so that a
 * test program can use a GPU by writing a file. Everything is read anew when it changed; used memory is what the GPU
 * line says and what its processes hold.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <nvml.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { GPUS = 32, SLOTS = 8, PROCESSES = 1024, LINE = 1024 };

typedef struct {
    int there, error, mig, mode, quiet, unified, util, temp, power_mw;
    char uuid[96], name[96];
    unsigned long long total_mib, used_mib, reserved_mib;
} device_t;

typedef struct {
    int gpu, slot;
    unsigned pid;
    long long mib; /* -1: not told */
    char kind;
} process_t;

struct nvmlDevice_st {
    int gpu, slot; /* slot -1: the whole GPU */
};

static struct nvmlDevice_st handles[GPUS][SLOTS + 1];
static device_t gpus[GPUS], migs[GPUS][SLOTS];
static process_t processes[PROCESSES];
static int gpu_count, fixed_count, process_count, driver_error, old_driver, opened;
static struct stat last_read;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int text_of(const char *line, const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    for (const char *at = strchr(line, '\t'); at; at = strchr(at + 1, '\t')) {
        if (strncmp(at + 1, key, length) || at[1 + length] != '=') continue;
        const char *value = at + 2 + length;
        size_t n = strcspn(value, "\t\n");
        if (n >= size) n = size - 1;
        memcpy(out, value, n);
        out[n] = 0;
        return 1;
    }
    return 0;
}

static long long number_of(const char *line, const char *key, long long otherwise) {
    char text[32];
    return text_of(line, key, text, sizeof text) ? atoll(text) : otherwise;
}

static void read_device(device_t *device, const char *line) {
    memset(device, 0, sizeof *device);
    device->there = 1;
    text_of(line, "uuid", device->uuid, sizeof device->uuid);
    text_of(line, "name", device->name, sizeof device->name);
    device->total_mib = number_of(line, "total_mib", 24576);
    device->used_mib = number_of(line, "used_mib", 0);
    device->reserved_mib = number_of(line, "reserved_mib", 0);
    device->util = number_of(line, "util", 0);
    device->temp = number_of(line, "temp", 40);
    device->power_mw = number_of(line, "power_mw", 25000);
    device->mode = number_of(line, "mode", 0);
    device->mig = number_of(line, "mig", -1);
    device->error = number_of(line, "error", 0);
    device->quiet = number_of(line, "quiet", 0);
    device->unified = number_of(line, "unified", 0);
}

static int index_of(const char *line) {
    char text[96];
    if (!text_of(line, "gpu", text, sizeof text)) return -1;
    for (int i = 0; i < gpu_count; i++)
        if (!strcmp(text, gpus[i].uuid)) return i;
    return strspn(text, "0123456789") == strlen(text) && atoi(text) < gpu_count ? atoi(text) : -1;
}

static void read_process(const char *line, int must_live) {
    int gpu = index_of(line);
    unsigned pid = number_of(line, "pid", 0);
    char kind[4] = "C";
    if (gpu < 0 || process_count == PROCESSES) return;
    if (must_live && kill(pid, 0) && errno == ESRCH) return;
    text_of(line, "kind", kind, sizeof kind);
    processes[process_count++] =
        (process_t){gpu, number_of(line, "slot", -1), pid, number_of(line, "mib", -1), kind[0]};
}

static void read_line(const char *line) {
    if (!strncmp(line, "driver", 6)) {
        driver_error = number_of(line, "error", 0);
        old_driver = number_of(line, "old", 0);
    } else if (!strncmp(line, "gpu", 3) && gpu_count < GPUS) {
        read_device(&gpus[gpu_count++], line);
    } else if (!strncmp(line, "mig", 3)) {
        int gpu = index_of(line), slot = number_of(line, "slot", 0);
        if (gpu >= 0 && slot < SLOTS) read_device(&migs[gpu][slot], line);
    } else if (!strncmp(line, "process", 7)) {
        read_process(line, 0);
    }
}

static int unchanged(const struct stat *now) {
    return now->st_ino == last_read.st_ino && now->st_size == last_read.st_size &&
           now->st_mtim.tv_sec == last_read.st_mtim.tv_sec && now->st_mtim.tv_nsec == last_read.st_mtim.tv_nsec;
}

static void read_living(const char *root) {
    char path[LINE], line[LINE];
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/processes", root);
    DIR *folder = opendir(path);
    process_count = fixed_count;
    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/processes/%s", root, entry->d_name);
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file)) read_process(line, 1);
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
}

static nvmlReturn_t refresh(void) {
    const char *root = getenv("LAB_GPU_STUB_NVML");
    char path[LINE], line[LINE];
    struct stat now;
    snprintf(path, sizeof path, "%s/gpus", root ? root : "/nonexistent");
    if (stat(path, &now)) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (!unchanged(&now)) {
        FILE *file = fopen(path, "r");
        if (!file) return NVML_ERROR_DRIVER_NOT_LOADED;
        gpu_count = process_count = driver_error = old_driver = 0;
        memset(migs, 0, sizeof migs);
        while (fgets(line, sizeof line, file)) read_line(line);
        fclose(file);
        fixed_count = process_count;
        last_read = now;
    }
    read_living(root);
    return driver_error;
}

/* Every call: the lock, an opened library, a driver that answers. */
static nvmlReturn_t enter(void) {
    pthread_mutex_lock(&mutex);
    return opened ? refresh() : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t leave(nvmlReturn_t result) {
    pthread_mutex_unlock(&mutex);
    return result;
}

static device_t *device_of(nvmlDevice_t handle) {
    return handle->slot < 0 ? &gpus[handle->gpu] : &migs[handle->gpu][handle->slot];
}

static nvmlReturn_t check(nvmlDevice_t handle) {
    nvmlReturn_t result = enter();
    if (result) return result;
    if (!handle || handle->gpu >= gpu_count || !device_of(handle)->there) return NVML_ERROR_INVALID_ARGUMENT;
    return gpus[handle->gpu].error;
}

#define ENTER() do { nvmlReturn_t r_ = enter(); if (r_) return leave(r_); } while (0)
#define DEVICE(handle) \
    do { nvmlReturn_t r_ = check(handle); if (r_) return leave(r_); } while (0); \
    device_t *gpu = device_of(handle); (void)gpu
#define ONLY(condition, error) do { if (!(condition)) return leave(error); } while (0)

static nvmlReturn_t copy(char *out, unsigned size, const char *text) {
    if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

static unsigned long long used_bytes(nvmlDevice_t handle) {
    unsigned long long mib = device_of(handle)->used_mib;
    for (int i = 0; i < process_count; i++)
        if (processes[i].gpu == handle->gpu && processes[i].slot == handle->slot && processes[i].mib > 0)
            mib += processes[i].mib;
    return mib << 20;
}

static nvmlReturn_t list(nvmlDevice_t handle, char kind, unsigned *count, nvmlProcessInfo_t *out) {
    unsigned found = 0;
    for (int i = 0; i < process_count; i++) {
        process_t *p = &processes[i];
        if (p->gpu != handle->gpu || p->slot != handle->slot || p->kind != kind) continue;
        if (out && found < *count) {
            unsigned long long bytes = p->mib < 0 ? (unsigned long long)NVML_VALUE_NOT_AVAILABLE : (unsigned long long)p->mib << 20;
            out[found] = (nvmlProcessInfo_t){p->pid, bytes, 0xFFFFFFFFu, 0xFFFFFFFFu};
        }
        found++;
    }
    int fits = found <= *count && (out || !found);
    *count = found;
    return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = refresh();
    if (!result) opened++;
    return leave(result);
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = opened ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (opened) opened--;
    return leave(result);
}

const char *nvmlErrorString(nvmlReturn_t result) { return result ? "an error of the stub" : "Success"; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER();
    return leave(copy(version, length, "580.95.05"));
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    ENTER();
    *count = gpu_count;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    ENTER();
    ONLY(index < (unsigned)gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    handles[index][SLOTS] = (struct nvmlDevice_st){index, -1};
    *device = &handles[index][SLOTS];
    return leave(gpus[index].error);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER();
    for (int i = 0; i < gpu_count; i++) {
        if (strcmp(uuid, gpus[i].uuid)) continue;
        handles[i][SLOTS] = (struct nvmlDevice_st){i, -1};
        *device = &handles[i][SLOTS];
        return leave(gpus[i].error);
    }
    return leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    DEVICE(device);
    *index = device->gpu;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    DEVICE(device);
    return leave(copy(uuid, length, gpu->uuid));
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    DEVICE(device);
    return leave(copy(name, length, gpu->name));
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    DEVICE(device);
    ONLY(!gpu->unified, NVML_ERROR_NOT_SUPPORTED);
    memory->total = gpu->total_mib << 20;
    memory->used = used_bytes(device) + (gpu->reserved_mib << 20);
    memory->free = memory->total - memory->used;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    DEVICE(device);
    ONLY(!old_driver, NVML_ERROR_FUNCTION_NOT_FOUND);
    ONLY(memory->version == nvmlMemory_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    ONLY(!gpu->unified, NVML_ERROR_NOT_SUPPORTED);
    memory->total = gpu->total_mib << 20;
    memory->reserved = gpu->reserved_mib << 20;
    memory->used = used_bytes(device);
    memory->free = memory->total - memory->used - memory->reserved;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    DEVICE(device);
    ONLY(!gpu->quiet && device->slot < 0, NVML_ERROR_NOT_SUPPORTED);
    *rates = (nvmlUtilization_t){gpu->util, 0};
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *celsius) {
    DEVICE(device);
    (void)sensor;
    ONLY(!gpu->quiet && device->slot < 0, NVML_ERROR_NOT_SUPPORTED);
    *celsius = gpu->temp;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
    DEVICE(device);
    ONLY(!gpu->quiet && device->slot < 0, NVML_ERROR_NOT_SUPPORTED);
    *milliwatts = gpu->power_mw;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    DEVICE(device);
    ONLY(!gpu->quiet && device->slot < 0, NVML_ERROR_NOT_SUPPORTED);
    *mode = gpu->mode;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    DEVICE(device);
    ONLY(gpu->mig >= 0, NVML_ERROR_NOT_SUPPORTED);
    *current = *pending = gpu->mig;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    DEVICE(device);
    *count = gpu->mig < 0 ? 0 : 7;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    DEVICE(device);
    ONLY(index < SLOTS && migs[device->gpu][index].there, NVML_ERROR_NOT_FOUND);
    handles[device->gpu][index] = (struct nvmlDevice_st){device->gpu, index};
    *mig = &handles[device->gpu][index];
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    DEVICE(device);
    ONLY(!old_driver, NVML_ERROR_FUNCTION_NOT_FOUND);
    return leave(list(device, 'C', count, infos));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    DEVICE(device);
    ONLY(!old_driver, NVML_ERROR_FUNCTION_NOT_FOUND);
    return leave(list(device, 'G', count, infos));
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    DEVICE(device);
    return leave(list(device, 'C', count, (nvmlProcessInfo_t *)infos));
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos) {
    DEVICE(device);
    return leave(list(device, 'G', count, (nvmlProcessInfo_t *)infos));
}
