//! The known name that a misspelt one was probably meant to be.

use strsim::osa_distance;

/// No name is as long as this, so nothing longer is a misspelling of one.
const WORD_BYTES_MAX: usize = 64;

/// The candidate closest to `word`, if any is close enough to be worth naming.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = plain(word);
    let end = word.chars().last();
    // A long name may have a typo or two; a short one with two could be anything.
    let far = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &plain(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= far || is_stem(&word, candidate))
        // Of two that are equally close, prefer the one with the same last letter.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(suggest("laese_ms"), Some("lease_ms"), "two letters swapped are one mistake");
        assert_eq!(suggest(""), None);
        assert_eq!(suggest(&"listen".repeat(20)), None);
    }
}
