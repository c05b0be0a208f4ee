//! The known word nearest to a mistyped one.

/// The word that fewest single-letter edits turn into `typed`, if that is few enough to be a slip of the hand: at most a
/// third of its letters, at least one. Case does not count; the first wins ties.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed: Vec<char> = typed.to_lowercase().chars().collect();
    let edits_max = (typed.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for word in known {
        let letters: Vec<char> = word.to_lowercase().chars().collect();
        // The difference in length is a lower bound of the edits, and far cheaper.
        if letters.len().abs_diff(typed.len()) > edits_max {
            continue;
        }
        let edits = edits(&typed, &letters);
        if edits <= edits_max && best.is_none_or(|(least, _)| edits < least) {
            best = Some((edits, word));
        }
    }
    best.map(|(_, word)| word)
}

/// Levenshtein's distance, one row at a time.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let d = |a: &str, b: &str| edits(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        assert_eq!(d("kitten", "sitting"), 3);
        assert_eq!(d("", "abc"), 3);
        assert_eq!(d("abc", ""), 3);
        assert_eq!(d("same", "same"), 0);
    }

    #[test]
    fn only_slips_are_corrected() {
        let known = ["members", "tickets", "call-back", "cpu"];
        assert_eq!(nearest("ticket", known), Some("tickets"));
        assert_eq!(nearest("call_back", known), Some("call-back"));
        assert_eq!(nearest("Members", known), Some("members"));
        assert_eq!(nearest("gpu", known), Some("cpu"));
        assert_eq!(nearest("weight", known), None);
        assert_eq!(nearest("", known), None);
    }
}
