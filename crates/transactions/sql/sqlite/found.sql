-- Found: a fence above yours means that you are late: roll back, and settle nothing. Otherwise
-- the effect is there: roll back, and settle done with this result.
SELECT fence, result, result_type FROM hapax_inbox
WHERE consumer = ?1 AND tenant = ?2 AND queue = ?3
  AND message_key = ?4 AND message_group = ?5 AND generation = ?6
