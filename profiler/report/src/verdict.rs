//! The result of a study in one or two sentences, before any table.

use commonhold_scale::scaling::{Scaling, Slope, slope};
use commonhold_scale::verdict::Outside;

use crate::{Answered, number, size, time};

/// The main cause is named if it has at least this fraction of the growth.
const CAUSE_MIN: f64 = 0.3;

/// The verdict: an external bound on the study, if any, and how the program scales.
pub(super) fn verdict(answered: &Answered) -> String {
    let study = answered.study;
    match answered.outside {
        Some(Outside::Others { size: n, part }) => format!(
            "Inconclusive: others used {:.0} % of these CPUs at {}, and the program queued for them. What follows tells of \
             these others as much as of the program: measure it on a machine that does nothing else.",
            part * 100.0,
            size(study.sizes_are, n)
        ),
        Some(Outside::Quota { cpus, throttled }) => {
            let file = study.quota.as_ref().map_or("", |quota| quota.file.as_str());
            let held = match throttled >= 0.005 {
                true => format!(", and kept {} CPUs from running in the mean", number(throttled)),
                false => String::new(),
            };
            format!(
                "A CPU quota bounds it: {file} allows the time of {} CPUs{held}. {}",
                number(cpus),
                of_program(answered)
            )
        }
        None => of_program(answered),
    }
}

/// The sentences about the program itself.
fn of_program(answered: &Answered) -> String {
    let study = answered.study;
    let kind = study.sizes_are;
    let medians: Vec<(u32, f64)> =
        study.within().filter_map(|size| Some((size.n, size.throughput()?.0))).collect();
    let ends = medians.first().copied().zip(medians.last().copied());
    let Some(((from, low), (to, high))) = ends.filter(|((from, _), (to, _))| from < to) else {
        return match &answered.scaling {
            Scaling::Nothing if study.measured().next().is_some() => {
                "No answer: no size was measured on as many CPUs as it asks for.".to_owned()
            }
            Scaling::Nothing => "No answer: no size could be measured.".to_owned(),
            _ => "One size tells nothing of how it scales.".to_owned(),
        };
    };
    let (small, large) = (size(kind, from), size(kind, to));
    let times = number(high / low);
    let best = medians.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(from, |(n, _)| n);
    let gain = format!("Throughput at {large} is {times} times that at {small}");
    let mut text = match &answered.scaling {
        Scaling::Law(fit) if fit.law.falls_from_the_first_step() && best == from => {
            falls(&small, &large, &times)
        }
        Scaling::Law(fit) => match slope(fit, f64::from(to)) {
            _ if fit.misfit => format!("{gain}, and the sizes between follow no law."),
            Slope::Positive => format!("{gain}, and rises still."),
            Slope::Unclear => format!("{gain}; whether it would rise further cannot be told."),
            Slope::Negative => format!(
                "Throughput peaks at about {}. At {large} it is {times} times that at {small}.",
                size(kind, best)
            ),
        },
        Scaling::Two(two) if two.speed_up < 1.0 => falls(&small, &large, &times),
        Scaling::FarFromOne => format!("{gain}; what one alone does is not known."),
        _ => format!("{gain}, where {} would be in proportion.", number(f64::from(to) / f64::from(from))),
    };
    text += &cause(answered);
    text
}

fn falls(small: &str, large: &str, times: &str) -> String {
    format!(
        "Throughput falls from the first step on: it is highest at {small}, and {times} times that at {large}."
    )
}

/// The sentence on the main cause of the growth; empty if no cause has a large part.
fn cause(answered: &Answered) -> String {
    let Some(growth) = answered.growth.as_ref().filter(|growth| time::is_worth_a_name(growth)) else {
        return String::new();
    };
    let growing_s: f64 = growth.parts.iter().map(|part| part.more_s.max(0.0)).sum();
    let Some(largest) = growth.parts.first().filter(|part| part.more_s >= growing_s * CAUSE_MIN) else {
        return String::new();
    };
    let words = time::words(largest.cause);
    let words = words.split_once(['.', ':']).map_or(words, |(first, _)| first);
    format!(" Most of what is lost: {words}.")
}
