/* How fast two or more threads read memory, in GB/s, and multiply and add floats in registers, in
   GFLOP/s, right now: a decode step cannot be faster than the one, a prompt not than the other.

   Reading: each thread its own contiguous part of 512 MiB, the best of three passes counts.
   Arithmetic: chains of fused multiplications and additions in the widest vectors that the compiler
   knows of this processor, for a tenth of a second; what the threads did is added up.
   Usage: speed THREADS */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
enum { FLOATS = 16 };
#elif defined(__AVX__)
enum { FLOATS = 8 };
#else
enum { FLOATS = 4 };
#endif
typedef float vector __attribute__((vector_size(FLOATS * sizeof(float))));

enum { PASSES = 3, MAX_THREADS = 256, LANES = 16 };
enum { CHAINS = 12, TURNS = 10000 }; /* more chains than a processor has additions in flight */
static const size_t SIZE = (size_t)512 << 20;
static const double ARITHMETIC_SECONDS = 0.1;

static uint64_t *memory;
static int num_threads;
static pthread_barrier_t barrier;
static volatile uint64_t sink;
static volatile float float_sink, factor = 0.5f, summand = 0.5f; /* no chain grows or vanishes */
static double gigaflops[MAX_THREADS];

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

static double multiply(void) {
    vector sums[CHAINS], x = (vector){0} + factor, y = (vector){0} + summand;
    for (int chain = 0; chain < CHAINS; chain++) sums[chain] = y;
    double started = now(), seconds, operations = 0;
    do {
        for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
            for (int chain = 0; chain < CHAINS; chain++) sums[chain] = sums[chain] * x + y;
        }
        operations += 2.0 * TURNS * CHAINS * FLOATS;
        seconds = now() - started;
    } while (seconds < ARITHMETIC_SECONDS);
    for (int chain = 0; chain < CHAINS; chain++) float_sink = sums[chain][0];
    return operations / seconds / 1e9;
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
    pthread_barrier_wait(&barrier);
    gigaflops[number] = multiply();
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
    pthread_barrier_wait(&barrier);
    double sum = 0;
    for (int i = 0; i < num_threads; i++) {
        pthread_join(threads[i], NULL);
        sum += gigaflops[i];
    }
    printf("%.2f %.1f\n", SIZE / best / 1e9, sum);
    return 0;
}
