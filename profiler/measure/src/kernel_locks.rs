//! Kernel locks that a program waits for, and what wakes its threads, traced by BPF.

#[cfg(not(feature = "kernel"))]
use commonhold_scale::blame::Observed;

#[cfg(feature = "kernel")]
pub(crate) use traced::KernelLocks;

/// Why this build traces nothing.
#[cfg(not(feature = "kernel"))]
const NOT_IN: &str = "this build cannot look into the kernel: it was built without the feature `kernel`";

/// Without the feature `kernel`, traces nothing.
#[cfg(not(feature = "kernel"))]
#[derive(Debug, Default)]
pub(crate) struct KernelLocks;

#[cfg(not(feature = "kernel"))]
impl KernelLocks {
    /// Starts tracing processes that are started from now on. Error: why that is impossible.
    #[allow(clippy::unused_self)]
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        Err(NOT_IN.to_owned())
    }

    /// Adds the traced waits and wake-ups. Returns the number of dropped events.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    pub(crate) fn end(&mut self, _: &mut Observed) -> Result<u64, String> {
        Ok(0)
    }
}

#[cfg(feature = "kernel")]
mod traced {
    use std::collections::BTreeMap;

    use commonhold_scale::blame::{Hold, Holding, Kind, Lock, Observed, Site, Wake, Waker};
    use commonhold_scale::states::State;
    use commonhold_trace::kernel::{Contention, Holder, LockKind, Place, Watched, Watcher, Who};

    use crate::thread_sample::group;

    /// The tracer, loaded once for all runs.
    #[derive(Debug, Default)]
    pub(crate) struct KernelLocks(Option<Result<Watcher, String>>);

    impl KernelLocks {
        /// Starts tracing processes that are started from now on. Error: why that is impossible.
        pub(crate) fn begin(&mut self) -> Result<(), String> {
            let load = || Watcher::load().map_err(|error| error.to_string());
            match self.0.get_or_insert_with(load) {
                Ok(watcher) => watcher.begin().map_err(|error| error.to_string()),
                Err(why) => Err(why.clone()),
            }
        }

        /// Adds the traced waits and wake-ups. Returns the number of dropped events.
        pub(crate) fn end(&mut self, observed: &mut Observed) -> Result<u64, String> {
            let Some(Ok(watcher)) = &mut self.0 else { return Ok(0) };
            let watched = watcher.end().map_err(|error| error.to_string())?;
            let lost = watched.lost;
            add(observed, watched);
            Ok(lost)
        }
    }

    fn site(place: Place) -> Site {
        Site { function: place.function, place: place.call }
    }

    fn kind(kind: LockKind) -> Kind {
        match kind {
            LockKind::Mutex => Kind::KernelMutex,
            LockKind::ReadWrite => Kind::KernelReadWrite,
            LockKind::Spin => Kind::KernelSpin,
            LockKind::Other => Kind::KernelOther,
        }
    }

    /// Time waited for a lock, by call site, and by what its holders did.
    #[derive(Default)]
    struct Sums {
        waits: BTreeMap<Site, u64>,
        holds: BTreeMap<(Holding, Option<Site>, String), u64>,
    }

    /// Adds traced waits and wake-ups to a run's observations. Unnamed locks of one kind that are waited for
    /// in the same function count as one lock.
    fn add(observed: &mut Observed, watched: Watched) {
        let mut locks: BTreeMap<(Kind, Option<String>, String), Sums> = BTreeMap::new();
        for Contention { kind: lock_kind, name, at, ns, holders } in watched.contentions {
            let function = if name.is_some() { String::new() } else { at.function.clone() };
            let sums = locks.entry((kind(lock_kind), name, function)).or_default();
            *sums.waits.entry(site(at)).or_default() += ns;
            for (holder, place, name, ns) in holders {
                let holding = match holder {
                    Holder::Runs => Holding::Runs,
                    Holder::Sleeps => Holding::Waits(State::Sleep),
                    Holder::Unknown => Holding::Unknown,
                };
                *sums.holds.entry((holding, place.map(site), group(&name))).or_default() += ns;
            }
        }
        observed.locks.extend(locks.into_iter().map(|((kind, name, _), Sums { waits, holds })| {
            Lock {
                kind,
                name,
                waits: waits.into_iter().collect(),
                holds: holds
                    .into_iter()
                    .map(|((holding, site, thread), ns)| Hold { holding, site, thread, ns })
                    .collect(),
            }
        }));
        let mut wakes: BTreeMap<(String, Option<Site>, Waker), u64> = BTreeMap::new();
        for woken in watched.woken {
            let waker = match woken.who {
                Who::Thread => Waker::Thread(group(&woken.waker)),
                Who::Other => Waker::Other(woken.waker),
                Who::Interrupt => Waker::Interrupt,
            };
            *wakes.entry((group(&woken.waiter), woken.at.map(site), waker)).or_default() += woken.ns;
        }
        let wakes = wakes.into_iter();
        observed.wakes.extend(wakes.map(|((waiter, at, waker), waited_ns)| Wake {
            waiter,
            at,
            waker,
            waited_ns,
        }));
    }
}
