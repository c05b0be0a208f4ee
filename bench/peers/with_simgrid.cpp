// Round robin in SimGrid: tasks that compute for ever, one slice at a time, on the CPUs of one host. And M/M/1.
//
// usage: with_simgrid turns|fluid CPUS TASKS SLICE_US SECONDS: virtual seconds; prints slices and CPU seconds
//        with_simgrid mm1 CUSTOMERS: with a utilisation of 0.8; prints the customers, the mean time in the system by the mean
//                                    service time, and CPU seconds

#include <simgrid/s4u.hpp>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <random>
#include <string>

namespace sg = simgrid::s4u;

// One CPU's work per second.
constexpr double SPEED = 1e9;

struct Run {
    double slice_s;
    double seconds;
    unsigned long slices = 0;
};

// Round robin: waits for a CPU in the order of arrival, holds it for a slice, and waits again.
static void takes_turns(Run *run, sg::SemaphorePtr cpus)
{
    for (;;) {
        cpus->acquire();
        sg::this_actor::sleep_for(run->slice_s);
        cpus->release();
        run->slices++;
    }
}

// The host's own model: all tasks compute concurrently. A slice is a CPU's work in that time.
static void computes(Run *run)
{
    for (;;) {
        sg::this_actor::execute(run->slice_s * SPEED);
        run->slices++;
    }
}

static double cpu_s()
{
    timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// The customers in the system, by their times of arrival.
struct Line {
    std::deque<double> present;
    sg::SemaphorePtr arrived = sg::Semaphore::create(0);
    unsigned long customers;
    double total_s = 0;
};

static void arrives(Line *line)
{
    std::mt19937_64 bits(1);
    std::exponential_distribution<double> between(0.8);
    for (;;) {
        sg::this_actor::sleep_for(between(bits));
        line->present.push_back(sg::Engine::get_clock());
        line->arrived->release();
    }
}

static void serves(Line *line)
{
    std::mt19937_64 bits(2);
    std::exponential_distribution<double> service(1.0);
    for (unsigned long served = 0; served < line->customers; served++) {
        line->arrived->acquire();
        sg::this_actor::sleep_for(service(bits));
        line->total_s += sg::Engine::get_clock() - line->present.front();
        line->present.pop_front();
    }
}

static int mm1(sg::Engine &engine, unsigned long customers)
{
    auto *zone = sg::create_full_zone("machine");
    auto *host = zone->create_host("host", SPEED)->seal();
    zone->seal();
    Line line;
    line.customers = customers;
    sg::Actor::create("customers", host, arrives, &line)->daemonize();
    sg::Actor::create("server", host, serves, &line);
    double begun = cpu_s();
    engine.run();
    std::printf("%lu %.3f %.6f\n", customers, line.total_s / static_cast<double>(customers), cpu_s() - begun);
    std::fflush(stdout);
    std::_Exit(0);
}

int main(int argc, char **argv)
{
    sg::Engine engine(&argc, argv);
    if (argc == 3 && std::string(argv[1]) == "mm1")
        return mm1(engine, std::strtoul(argv[2], nullptr, 10));
    if (argc != 6) {
        std::fprintf(stderr, "usage: with_simgrid turns|fluid CPUS TASKS SLICE_US SECONDS\n");
        return 2;
    }
    bool turns = std::string(argv[1]) == "turns";
    int cpus = std::atoi(argv[2]), tasks = std::atoi(argv[3]);
    Run run{std::atof(argv[4]) / 1e6, std::atof(argv[5])};

    auto *zone = sg::create_full_zone("machine");
    auto *host = zone->create_host("host", SPEED)->set_core_count(cpus)->seal();
    zone->seal();
    auto places = sg::Semaphore::create(static_cast<unsigned>(cpus));
    for (int task = 0; task < tasks; task++) {
        if (turns)
            sg::Actor::create("task", host, takes_turns, &run, places);
        else
            sg::Actor::create("task", host, computes, &run);
    }

    double begun = cpu_s();
    engine.run_until(run.seconds + run.slice_s / 2);
    std::printf("%lu %.6f\n", run.slices, cpu_s() - begun);
    std::fflush(stdout);
    // Tasks that compute for ever are not waited for.
    std::_Exit(0);
}
