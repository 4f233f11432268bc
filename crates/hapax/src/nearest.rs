//! Did you mean? The known name that is spelled most like an unknown one.

/// The nearest of the names, where it is near enough to be a typo.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count().div_ceil(3).max(1);
    known
        .into_iter()
        .map(|other| (distance(name, other), other))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, other)| other)
}

/// How many letters must be added, dropped or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.to_lowercase().chars().enumerate() {
        let mut before = line;
        let mut left = line + 1;
        let mut next = vec![left];
        for (other, above) in b.iter().zip(row.iter().skip(1)) {
            left = (before + usize::from(*other != letter)).min(above + 1).min(left + 1);
            before = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_name_and_another_word_finds_none() {
        let known = ["orders", "emails", "orders.eu"];
        assert_eq!(nearest("order", known), Some("orders"));
        assert_eq!(nearest("Oders", known), Some("orders"));
        assert_eq!(nearest("emials", known), Some("emails"));
        assert_eq!(nearest("payments", known), None);
        assert_eq!((distance("kitten", "sitting"), distance("", "abc")), (3, 3));
    }
}
