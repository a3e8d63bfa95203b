/* How fast two or more threads read memory right now, in GB/s: a decode step cannot be faster.

   Each thread reads its own contiguous part of 512 MiB, the best of three passes counts.
   Usage: bandwidth THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PASSES = 3, MAX_THREADS = 256, LANES = 16 };
static const size_t SIZE = (size_t)512 << 20;

static uint64_t *memory;
static int num_threads;
static pthread_barrier_t barrier;
static volatile uint64_t sink;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void read_part(int number) {
    size_t count = SIZE / sizeof(uint64_t) / num_threads / LANES * LANES;
    const uint64_t *part = memory + (size_t)number * count;
    uint64_t sums[LANES] = {0};
    for (size_t i = 0; i < count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += part[i + lane];
    for (int lane = 0; lane < LANES; lane++) sink += sums[lane];
}

static void *run(void *argument) {
    int number = (int)(intptr_t)argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(number, &set);
    sched_setaffinity(0, sizeof set, &set); /* new threads often begin on one core together */
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&barrier);
        read_part(number);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int argc, char **argv) {
    num_threads = argc > 1 ? atoi(argv[1]) : 1;
    if (num_threads < 1 || num_threads > MAX_THREADS) return 2;
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, SIZE, MADV_HUGEPAGE);
    memset(memory, 1, SIZE);
    pthread_barrier_init(&barrier, NULL, num_threads + 1);
    pthread_t threads[MAX_THREADS];
    for (int i = 0; i < num_threads; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i)) return 1;
    double best = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        double started = now();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        double seconds = now() - started;
        if (seconds < best) best = seconds;
    }
    for (int i = 0; i < num_threads; i++) pthread_join(threads[i], NULL);
    printf("%.2f\n", SIZE / best / 1e9);
    return 0;
}
