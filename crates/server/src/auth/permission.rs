//! The permissions of a token, as a small set.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    Send,
    Work,
    Admin,
    /// Covers the whole server, beyond the token's tenant.
    Operate,
}

impl Permission {
    pub const ALL: [Self; 4] = [Self::Send, Self::Work, Self::Admin, Self::Operate];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Work => "work",
            Self::Admin => "admin",
            Self::Operate => "operate",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The text is not a permission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a permission: use send, work, admin or operate, separated by commas")]
pub struct UnknownPermission(pub String);

impl FromStr for Permission {
    type Err = UnknownPermission;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|permission| permission.as_str() == text);
        known.ok_or_else(|| UnknownPermission(text.to_owned()))
    }
}

/// A set of permissions, written as a list: `send,work`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<&'static str>")]
pub struct Permissions(u8);

impl Permissions {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(0b1111);

    pub fn contains(self, permission: Permission) -> bool {
        self.0 & permission.bit() != 0
    }

    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }

    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |&permission| self.contains(permission))
    }
}

impl FromIterator<Permission> for Permissions {
    fn from_iter<I: IntoIterator<Item = Permission>>(permissions: I) -> Self {
        Self(permissions.into_iter().fold(0, |bits, permission| bits | permission.bit()))
    }
}

impl FromStr for Permissions {
    type Err = UnknownPermission;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',').map(|name| name.trim().parse::<Permission>()).collect()
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, permission) in self.iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            formatter.write_str(permission.as_str())?;
        }
        Ok(())
    }
}

impl TryFrom<Vec<String>> for Permissions {
    type Error = UnknownPermission;

    fn try_from(names: Vec<String>) -> Result<Self, Self::Error> {
        names.iter().map(|name| name.parse::<Permission>()).collect()
    }
}

impl From<Permissions> for Vec<&'static str> {
    fn from(permissions: Permissions) -> Self {
        permissions.iter().map(Permission::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_reads_back() {
        for bits in 0..=Permissions::ALL.0 {
            let set = Permissions(bits);
            assert_eq!(set.iter().collect::<Permissions>(), set);
            let json = serde_json::to_string(&set).unwrap();
            assert_eq!(serde_json::from_str::<Permissions>(&json).unwrap(), set, "{json}");
            if !set.is_empty() {
                assert_eq!(set.to_string().parse(), Ok(set));
            }
        }
        assert_eq!(Permission::ALL.into_iter().collect::<Permissions>(), Permissions::ALL);
    }

    #[test]
    fn a_permission_with_a_typo_is_refused() {
        assert_eq!("send, work".parse::<Permissions>().unwrap().to_string(), "send,work");
        for text in ["", "Send", "send,", "send;work", "everything"] {
            assert!(text.parse::<Permissions>().is_err(), "{text:?}");
        }
    }
}
