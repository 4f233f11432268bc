//! The known name that a misspelt one was probably meant to be.

/// No name is as long as this, so nothing longer is a misspelling of one.
const WORD_BYTES_MAX: usize = 64;

/// The candidate closest to `word`, if any is close enough to be worth naming.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = plain(word);
    let end = word.chars().last();
    // A long name with one typo is meant; a short one with two could be anything.
    let far = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= far || is_stem(&word, candidate))
        // Of two that are equally close, the one that also ends alike.
        .min_by_key(|(distance, candidate)| (*distance, candidate.chars().last() != end))
        .map(|(_, candidate)| candidate)
}

/// `retention` for `retention_ms`: the unit is what people forget.
fn is_stem(word: &str, candidate: &str) -> bool {
    let candidate = plain(candidate);
    word.len() >= 3 && candidate.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'))
}

fn plain(word: &str) -> String {
    word.trim().to_lowercase().replace(['-', ' ', '.'], "_")
}

/// How many letters were added, left out, replaced, or swapped with their neighbour.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    let mut last = None;
    for (done, letter) in left.chars().enumerate() {
        let mut next = vec![done + 1];
        for (index, other) in right.iter().enumerate() {
            let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX);
            let replaced = at(&row, index) + usize::from(letter != *other);
            let mut cost = replaced.min(at(&row, index + 1) + 1).min(at(&next, index) + 1);
            let previous = index.checked_sub(1).and_then(|index| right.get(index));
            if last == Some(*other)
                && previous == Some(&letter)
                && let Some(swapped) = index.checked_sub(1).map(|index| at(&before, index))
            {
                cost = cost.min(swapped.saturating_add(1));
            }
            next.push(cost);
        }
        before = std::mem::replace(&mut row, next);
        last = Some(letter);
    }
    row.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        for (left, right, expected) in [
            ("", "", 0),
            ("lease", "lease", 0),
            ("leese", "lease", 1),
            ("laese", "lease", 1),
            ("leas", "lease", 1),
            ("leases", "lease", 1),
            ("", "abc", 3),
            ("listen", "silent", 4),
        ] {
            assert_eq!(distance(left, right), expected, "{left} {right}");
            assert_eq!(distance(right, left), expected, "{right} {left}");
        }
    }

    #[test]
    fn the_closest_name_is_suggested_and_a_stranger_is_not() {
        let names = ["listen", "lease_ms", "retention_ms", "retry_horizon_ms", "ttl_ms"];
        let suggest = |word: &str| closest(word, names);
        assert_eq!(suggest("leese_ms"), Some("lease_ms"));
        assert_eq!(suggest("retention"), Some("retention_ms"));
        assert_eq!(suggest("retention-ms"), Some("retention_ms"));
        assert_eq!(suggest("Listen"), Some("listen"));
        assert_eq!(suggest("ttl"), Some("ttl_ms"));
        assert_eq!(suggest("colour"), None);
        assert_eq!(suggest(""), None);
        assert_eq!(suggest(&"listen".repeat(20)), None);
    }
}
