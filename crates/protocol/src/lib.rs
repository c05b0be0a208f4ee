//! The daemon's replies, and the varlink descriptions of its interfaces. Requests and framing are in
//! [`commonhold_client::wire`].
//!
//! [`replies`] has the replies to single requests, [`monitor`] those of a subscription.

pub mod monitor;
pub mod replies;

use commonhold_client::wire;

/// The daemon's interfaces, each with its description in varlink's language.
pub const DESCRIPTIONS: [(&str, &str); 2] = [
    (wire::INTERFACE, include_str!("io.commonhold.varlink")),
    (wire::SERVICE, include_str!("org.varlink.service.varlink")),
];

/// The description of an interface in varlink's language; `None` if the daemon has no such interface.
pub fn description(interface: &str) -> Option<&'static str> {
    DESCRIPTIONS.iter().find(|(name, _)| *name == interface).map(|(_, description)| *description)
}

#[cfg(test)]
mod tests;
