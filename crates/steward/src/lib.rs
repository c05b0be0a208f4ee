//! The steward: the loop that enforces a contract, on live and simulated machines alike.
//!
//! A turn of the loop has these stages: assign processes to units, observe, decide, check, apply, account.
//! [`Backend`] hides the differences between machines; [`Steward`] has all state that is kept from turn to
//! turn.
//!
//! Changes of rights are queued ([`Steward::queue_change`]). A change leaves the queue when a plan that makes
//! or refuses it has been carried out.
//!
//! [`Switches`] translates plans for a scheduler that decides at every switch. Live and simulated machines
//! both can have such a scheduler.

mod backend;
mod steward;
mod switches;

pub use backend::Backend;
pub use steward::{ALARM_NS, Changed, HOTPLUG_NS, Steward, Turn, Wrong};
pub use switches::{Rules, SwitchUpdate, Switches, disciplined, seated};
