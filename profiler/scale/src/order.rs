//! The order in which sizes add CPUs, and the default sizes.

use commonhold_machine::{Cpu, Machine};

/// The CPUs in the order in which growing sizes add them: the nearest first.
///
/// First come all CPUs that share the first CPU's cache, then those of the other caches of its node, then
/// those of the next node. Within a cache, the first hardware threads of all cores come before the second
/// ones: a second hardware thread adds less throughput than a core.
pub fn nearest(machine: &Machine) -> Vec<u32> {
    let rank_in_core =
        |cpu: &Cpu| machine.cpus.iter().filter(|c| c.core == cpu.core && c.id < cpu.id).count();
    let mut cpus: Vec<(u32, u32, usize, u32)> =
        machine.cpus.iter().map(|cpu| (cpu.node, cpu.cache, rank_in_core(cpu), cpu.id)).collect();
    cpus.sort_unstable();
    cpus.into_iter().map(|(_, _, _, id)| id).collect()
}

/// 1, 2, 3, 4, 6, 8, 12, 16 and so on up to `all`, and `all` itself. The ratios of neighbours are about
/// equal, and there are enough small sizes to show where the curve bends.
pub fn default_sizes(all: u32) -> Vec<u32> {
    let powers = (0..31).map(|power| 1u32 << power);
    let mut sizes: Vec<u32> = powers.flat_map(|n| [n, n / 2 * 3]).filter(|n| (1..=all).contains(n)).collect();
    sizes.push(all.max(1));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn cores_before_their_second_threads_and_caches_before_nodes() {
        // CPUs are numbered by node, cache, core, thread: 0 and 1 are one core.
        let machine = Machine::synthetic("nodes:2 cpus:8 threads:2 caches:2").unwrap();
        let order = nearest(&machine);
        assert_eq!(order, [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]);
    }

    #[test]
    fn sizes_are_about_equally_far_apart() {
        assert_eq!(default_sizes(1), [1]);
        assert_eq!(default_sizes(2), [1, 2]);
        assert_eq!(default_sizes(8), [1, 2, 3, 4, 6, 8]);
        assert_eq!(default_sizes(20), [1, 2, 3, 4, 6, 8, 12, 16, 20]);
        assert_eq!(default_sizes(0), [1]);
    }
}
