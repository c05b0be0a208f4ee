//! The steward: the loop that enforces a contract, on live and simulated machines alike.
//!
//! A turn: settle members, observe, decide, check, apply, account. What differs between machines is behind [`Backend`]; all
//! state that lasts from turn to turn is in [`Steward`].
//!
//! Changes of rights are queued ([`Steward::queue_change`]) until a plan that was carried out has made or refused them.
//!
//! [`Switches`] translates plans for a scheduler that decides at every switch. Live and simulated machines both have one.

mod backend;
mod steward;
mod switches;

pub use backend::Backend;
pub use steward::{ALARM_NS, Changed, Steward, Turn, Wrong};
pub use switches::{Rules, SwitchUpdate, Switches, disciplined, seated};
