//! The steward: the one loop that holds a contract, on a live machine and on a simulated one.
//!
//! A turn of the loop: settle members, observe, decide, check, apply, account. What differs between machines is behind [`Backend`]; what
//! is remembered from one turn to the next is here, and nowhere else.
//!
//! Changes of rights are queued ([`Steward::change`]) and handed to the next turn. They stay queued until a plan is carried
//! out that made or refused them.
//!
//! [`Switches`] says what a plan means for a scheduler that decides at every switch. Both machines have one.

mod backend;
mod steward;
mod switches;

pub use backend::Backend;
pub use steward::{ALARM_NS, Changed, Steward, Turn, Wrong};
pub use switches::{Rules, Switches, Told, disciplined, seated};
