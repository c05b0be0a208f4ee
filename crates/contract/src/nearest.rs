//! The known word nearest to a mistyped word, for remedies such as "did you mean `tickets`?".

/// The known word with the smallest edit distance to `typed`. Of several such words, returns the first.
/// Returns `None` if the distance is too large for a typing error: more than one, and more than a third of
/// the letters of `typed`. Case is ignored.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed: Vec<char> = typed.to_lowercase().chars().collect();
    let edits_max = (typed.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for word in known {
        let letters: Vec<char> = word.to_lowercase().chars().collect();
        // The difference in length is a lower bound of the edit distance, and is far cheaper to compute.
        if letters.len().abs_diff(typed.len()) > edits_max {
            continue;
        }
        let edits = edits(&typed, &letters);
        if edits <= edits_max && best.is_none_or(|(fewest, _)| edits < fewest) {
            best = Some((edits, word));
        }
    }
    best.map(|(_, word)| word)
}

/// The edit distance of two words: the fewest insertions, deletions, replacements and swaps of two
/// neighbouring letters that turn one into the other (Levenshtein's distance with swaps, optimal string
/// alignment). Computed row by row.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, x) in a.iter().enumerate() {
        let (above, mut row) = (&rows[i], vec![i + 1]);
        for (j, y) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(x != y);
            let mut fewest = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                let swapped = rows[i - 1][j - 1] + 1;
                fewest = fewest.min(swapped);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
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
        assert_eq!(d("raed", "read"), 1);
        assert_eq!(d("ca", "abc"), 3);
    }

    #[test]
    fn only_likely_typing_errors_are_corrected() {
        let known = ["members", "tickets", "call-back", "cpu"];
        assert_eq!(nearest("ticket", known), Some("tickets"));
        assert_eq!(nearest("call_back", known), Some("call-back"));
        assert_eq!(nearest("Members", known), Some("members"));
        assert_eq!(nearest("gpu", known), Some("cpu"));
        assert_eq!(nearest("cup", known), Some("cpu"));
        assert_eq!(nearest("weight", known), None);
        assert_eq!(nearest("", known), None);
    }
}
